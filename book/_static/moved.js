// An address of a part that now stands on another page leads there.
"use strict";

function goOn() {
  const anchor = decodeURIComponent(location.hash.slice(1));
  if (!anchor || document.getElementById(anchor)) return;
  const pages = JSON.parse(document.getElementById("moved").textContent);
  if (Object.hasOwn(pages, anchor)) location.replace(`${pages[anchor]}#${anchor}`);
}

goOn();
addEventListener("hashchange", goOn);
