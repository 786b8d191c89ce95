// A button under the title opens and closes all folded code of a page. What a reader
// chose holds on the other pages, too.
"use strict";

const KEY = "normbook-code";

/** What the reader chose, kept where the browser lets a page keep something. */
function chosen() {
  try {
    return localStorage.getItem(KEY) === "open";
  } catch {
    return false;
  }
}

function choose(isOpen) {
  try {
    localStorage.setItem(KEY, isOpen ? "open" : "closed");
  } catch {
    // A page from a disk may keep nothing.
  }
}

function addButton(folds) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "all-code";
  const show = (isOpen) => {
    for (const fold of folds) fold.open = isOpen;
    button.setAttribute("aria-pressed", String(isOpen));
    button.textContent = "Show all code";
  };
  button.addEventListener("click", () => {
    const isOpen = button.getAttribute("aria-pressed") !== "true";
    choose(isOpen);
    show(isOpen);
  });
  show(chosen());
  const head = document.querySelector("article .at-a-glance");
  if (head) head.append(" · ", button);
  else document.querySelector("article h1").after(button);
}

const folds = [...document.querySelectorAll("article details.hide")];
if (folds.length > 0) addButton(folds);
