// What lies far from the window is not laid out (custom.css, content-visibility), so
// nothing here asks where it is: the browser tells what comes near.
"use strict";

/** Mark, in the contents of the page, the section that is read and those it stands in. */
function markSections() {
  const links = new Map();
  for (const link of document.querySelectorAll(".page-toc a.nav-link"))
    links.set(document.getElementById(decodeURIComponent(link.hash.slice(1))), link);
  const reading = new IntersectionObserver(
    (changes) => {
      for (const { target, isIntersecting } of changes)
        for (const element of [links.get(target), links.get(target).parentElement])
          element.classList.toggle("active", isIntersecting);
    },
    { rootMargin: "-20% 0px -79% 0px" },
  );
  for (const section of links.keys()) if (section) reading.observe(section);
}

/** Let what scrolls by itself be reached by the keyboard. */
function reachWide() {
  const wide = new IntersectionObserver(
    (changes) => {
      for (const { target, isIntersecting } of changes)
        if (isIntersecting) {
          const { scrollWidth, clientWidth, scrollHeight, clientHeight } = target;
          target.tabIndex = scrollWidth > clientWidth || scrollHeight > clientHeight ? 0 : -1;
        }
    },
    { rootMargin: "100% 0px" },
  );
  const watch = () => {
    wide.disconnect();
    for (const block of document.querySelectorAll(
      "article :is(pre, .cell_output > .output, .pst-scrollable-table-container, .wide-picture)",
    ))
      wide.observe(block);
  };
  watch();
  addEventListener("resize", watch);
}

markSections();
reachWide();
