// A box above an index of symptoms. The rows that hold every typed word stay. Where no
// row does, as with a whole error text, the rows that share its rarest words come, the
// nearest first. With an empty box, and without this script, the groups show.
"use strict";

const COMMON = new Set(
  ("a an and are as at be been but by can do does for from get gives got has how i if in is it my" +
    " of on or so than that the there they this to was what when which why will with").split(" "),
);

/** The words of a text as they are compared: "BatchNorm" and "batch_norm" are one. */
function wordsOf(text) {
  return text
    .toLowerCase()
    .replace(/(batch|layer|group|instance)[ _-]?norm(ali[sz]ation)?/g, "$1norm ")
    .split(/[^a-z0-9]+/)
    .filter((word) => word && !COMMON.has(word));
}

/** A typed word without its ending: "freezing" finds "freeze", "different" "differs". */
const stem = (word) => word.replace(/^(\w{4,}?)(ing|ed|es|e|s|ent|ence)$/, "$1");

/** The rows, as numbers, that a typed text leads to, and whether they hold all of it. */
function nearest(texts, typed) {
  const wanted = [...new Set(wordsOf(typed).map(stem))];
  const rows = texts.map(wordsOf);
  const held = rows.map((row) =>
    wanted.map((word) => row.some((other) => other.startsWith(word))),
  );
  const everywhere = (i) => held[i].every(Boolean);
  const all = [...rows.keys()].filter(everywhere);
  if (all.length > 0) return { found: all, isWhole: true };

  const weights = wanted.map((_, k) => {
    const count = held.filter((row) => row[k]).length;
    return count > 0 ? Math.log(texts.length / count) : 0;
  });
  const scores = held.map((row) => row.reduce((sum, has, k) => sum + (has ? weights[k] : 0), 0));
  const enough = 0.5 * Math.max(...scores);
  const found = [...rows.keys()]
    .filter((i) => scores[i] > 0 && scores[i] >= enough)
    .sort((i, j) => scores[j] - scores[i])
    .slice(0, 6);
  return { found, isWhole: false };
}

function addFilter(tables) {
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  const texts = rows.map((row) => row.textContent);
  const groups = tables.map((table) => table.closest(".symptom-group") ?? table);

  const label = document.createElement("label");
  label.htmlFor = "symptom-filter";
  label.textContent = "Find a symptom: the error text, or words for what you see";
  const input = document.createElement("input");
  input.id = "symptom-filter";
  input.type = "search";
  input.autocomplete = "off";
  input.placeholder = "Expected more than 1 value per channel";
  const count = document.createElement("p");
  count.setAttribute("role", "status"); // read out when it changes
  const results = tables[0].cloneNode(true); // the rows found, of all groups
  results.removeAttribute("id");

  const filter = () => {
    const { found, isWhole } = nearest(texts, input.value);
    const isAsked = wordsOf(input.value).length > 0;
    results.tBodies[0].replaceChildren(...found.map((i) => rows[i].cloneNode(true)));
    results.hidden = !isAsked || found.length === 0;
    for (const group of groups) group.hidden = isAsked;
    if (isWhole) {
      count.textContent = `${found.length} of ${rows.length} symptoms`;
    } else if (found.length > 0) {
      count.textContent = `Nearest first: ${found.length} of ${rows.length}; none holds all of these words`;
    } else {
      count.textContent = "No entry holds any of these words";
    }
  };

  const box = document.createElement("div");
  box.className = "symptom-filter";
  box.append(label, input, count, results);
  groups[0].before(box);
  input.addEventListener("input", filter);
  filter();
}

if (typeof document === "undefined") {
  module.exports = { nearest, addFilter }; // for the tests
} else {
  document.addEventListener("DOMContentLoaded", () => {
    const tables = [...document.querySelectorAll("table.symptom-index")];
    if (tables.length > 0) addFilter(tables);
  });
}
