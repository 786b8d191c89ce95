// What a link leads to is open to read: the boxes that it stands in, or is, unfold.
"use strict";

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let box = target; box; box = box.parentElement) {
    if (box.tagName === "DETAILS") box.open = true;
    if (box.matches(".toggle-hidden")) box.querySelector(".toggle-button").click();
  }
  target?.scrollIntoView(); // what unfolded has moved it
}

// When the page is read, sphinx-togglebutton folds its boxes; this listens behind it.
document.addEventListener("DOMContentLoaded", openTarget);
addEventListener("hashchange", openTarget);
// A link to where one already is changes no hash.
addEventListener("click", (event) => {
  if (event.target.closest("a")?.href === location.href && location.hash) openTarget();
});
// A link in the title of a box leads on; sphinx-togglebutton would take it for the title.
addEventListener(
  "click",
  (event) => event.target.closest(".admonition-title a") && event.stopPropagation(),
  true,
);
