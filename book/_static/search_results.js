// A result of the search names the section that holds most of the words and leads there.
// Formulas stand in it as one reads them, without their source.
"use strict";

const HIDDEN = ".headerlink, script, style, annotation, .katex-html, .toctree-wrapper, .role";

/** The innermost section that holds most of the words: a title counts more than a text. */
function bestSection(sections, words) {
  let best = null;
  let most = 0;
  for (const section of sections) {
    const title = section.title.toLowerCase();
    const text = section.text.toLowerCase();
    const held = words.filter((word) => text.includes(word)).length;
    const named = words.filter((word) => title.includes(word)).length;
    const score = 2 * named + held;
    // A section inside another comes later and holds no more: it has to hold as much.
    if (score > 0 && (score > most || (score === most && section.isInside?.(best)))) {
      best = section;
      most = score;
    }
  }
  return best;
}

/** Some words of a text around the first place of one that was typed. */
function excerpt(text, words, length = 240) {
  const lower = text.toLowerCase();
  const places = words.map((word) => lower.indexOf(word)).filter((place) => place >= 0);
  const begin = Math.max(0, Math.min(...places, text.length) - length / 2);
  const part = text.slice(begin, begin + length).trim();
  return (begin > 0 ? "…" : "") + part + (begin + length < text.length ? "…" : "");
}

function sectionsOf(main) {
  return [...main.querySelectorAll("section[id], tr[id], dt[id]")].map((element) => ({
    element,
    id: element.id,
    title: (element.querySelector(":scope > :is(h1, h2, h3, h4)") ?? element).textContent.trim(),
    text: element.textContent,
    isInside: (other) => other?.element.contains(element),
  }));
}

function summary(html, searchWords, anchor) {
  const page = new DOMParser().parseFromString(html, "text/html");
  for (const element of page.querySelectorAll(HIDDEN)) element.remove();
  const main = page.querySelector('[role="main"]');
  if (!main) return document.createElement("p");
  const words = [...searchWords];
  const aim = anchor ? main.querySelector(`[id="${anchor.slice(1)}"]`) : null;
  const sections = sectionsOf(main);
  const best = aim ? null : bestSection(sections, words);
  const result = document.createElement("p");
  result.className = "context";
  if (best && best.element.matches("section") && best.element.parentElement.closest("section")) {
    result.dataset.section = best.id;
    result.dataset.title = best.title;
  }
  const text = (aim ?? best?.element ?? main).textContent.replace(/\s+/g, " ").trim();
  result.textContent = excerpt(text, words);
  return result;
}

/** Put the link to the section behind that to its page. */
function name(context) {
  const link = context.parentElement.querySelector("a");
  if (!context.dataset.section || link.hash) return;
  const other = document.createElement("a");
  other.href = link.href + "#" + context.dataset.section;
  other.textContent = context.dataset.title;
  link.after(" › ", other);
}

if (typeof document === "undefined") {
  module.exports = { bestSection, excerpt }; // for the tests
} else if (typeof Search !== "undefined") {
  Search.makeSearchSummary = summary;
  document.addEventListener("DOMContentLoaded", () => {
    const results = document.getElementById("search-results");
    if (!results) return;
    new MutationObserver((changes) => {
      for (const change of changes)
        for (const node of change.addedNodes) if (node.matches?.("p.context")) name(node);
    }).observe(results, { childList: true, subtree: true });
  });
}
