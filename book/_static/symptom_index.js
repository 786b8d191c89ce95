// A box above an index of symptoms. The rows that hold every typed word stay; where no
// row does, as with a whole error text, those that hold most of its words.
// Without this script the whole table shows.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.symptom-index");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());

  const label = document.createElement("label");
  label.htmlFor = "symptom-filter";
  label.textContent = "Find a symptom: the error text, or words for what you see";
  const input = document.createElement("input");
  input.id = "symptom-filter";
  input.type = "search";
  input.autocomplete = "off";
  const count = document.createElement("p");
  count.setAttribute("role", "status"); // read out when it changes

  const filter = () => {
    const words = input.value.toLowerCase().split(/[\s"'`:;,]+/).filter(Boolean);
    const hits = texts.map((text) => words.filter((word) => text.includes(word)).length);
    const most = Math.max(...hits);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = hits[i] < most || (words.length > 0 && most === 0);
      shown += row.hidden ? 0 : 1;
    });
    if (most === words.length) {
      count.textContent = `${shown} of ${rows.length} symptoms`;
    } else if (most > 0) {
      count.textContent = `No entry holds all of these words; nearest: ${shown} of ${rows.length}`;
    } else {
      count.textContent = "No entry holds any of these words";
    }
  };

  const box = document.createElement("div");
  box.className = "symptom-filter";
  box.append(label, input, count);
  table.before(box);
  input.addEventListener("input", filter);
  filter();
});
