// The built site in a browser: pages come from the disk, every other host is refused.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import axe from "axe-core";
import { chromium } from "playwright-core";

const HERE = dirname(fileURLToPath(import.meta.url));
export const SITE = process.env.SITE ?? join(HERE, "../../_build/html");
export const HOST = "http://book.test/";

// Where a change of a rule or of the theme shows: in CI these stand for all pages.
const SAMPLE = ["book/index.html", "book/handwriting.html", "book/bibliography.html", "search.html"];

const pagesOf = (folder) =>
  readdirSync(join(SITE, folder)).filter((name) => name.endsWith(".html")).map((name) => folder + name);
export const PAGES =
  process.env.SITE_PAGES === "all"
    ? [...pagesOf("book/"), ...pagesOf("").filter((name) => name !== "index.html"), "_modules/normbook/batch_norm.html"]
    : SAMPLE;

/** Figures that answer back, and the page on which one stands. */
const texts = new Map(pagesOf("book/").map((name) => [name, readFileSync(join(SITE, name), "utf8")]));
export const pageWith = (figure) => [...texts].find(([, text]) => text.includes(`data-living="${figure}"`))[0];
export const FIGURES =
  process.env.SITE_PAGES === "all"
    ? readdirSync(join(SITE, "_static/living")).filter((name) => name.endsWith(".svg")).map((name) => name.slice(0, -4))
    : ["batch_on_a_line", "gates_over_time"]; // with points to drag, and without

export const launch = () =>
  chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox"] });

/** A page of the site, with what went wrong on it: complaints of the console, other hosts. */
export async function open(browser, name, { width = 1440, height = 900, scheme = "light", ...more } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, ...more });
  context.setDefaultTimeout(120_000); // a machine that does much else is slow, not wrong
  const wrong = [];
  await context.route("**/*", (route) => {
    const address = new URL(route.request().url());
    const path = join(SITE, decodeURIComponent(address.pathname));
    const isThere = statSync(path, { throwIfNoEntry: false })?.isFile();
    if (address.origin + "/" === HOST && isThere) return route.fulfill({ path });
    wrong.push(`asks for ${address}`);
    return route.abort();
  });
  const page = await context.newPage();
  page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(String(error)));
  await page.goto(HOST + name);
  return { page, wrong, close: () => context.close() };
}

/** Lay out all of a page, and let each part of it pass the window once. */
export async function layOut(page) {
  await page.addStyleTag({ content: "* { content-visibility: visible !important }" });
  await page.evaluate(async () => {
    const frame = () => new Promise(requestAnimationFrame);
    for (let y = 0; y < document.documentElement.scrollHeight; y += 2 * innerHeight) {
      scrollTo({ top: y, behavior: "instant" });
      await frame();
      await frame(); // what watches the window is told behind the first
    }
    scrollTo({ top: 0, behavior: "instant" });
  });
}

/** What axe-core finds, in a line each. Drawings of formulas are hidden from readers. */
export async function barriers(page, rules) {
  await layOut(page);
  await page.evaluate(axe.source);
  // The theme fades the colours of buttons: what counts is where they arrive.
  await page.evaluate(() => {
    const fades = document.getAnimations().filter(({ timeline }) => timeline === document.timeline);
    return Promise.allSettled(fades.map(({ finished }) => finished));
  });
  return page.evaluate(async (rules) => {
    const where = { include: [["html"]], exclude: [[".katex-html"]] };
    const settings = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
    const { violations } = await window.axe.run(where, settings);
    // MathML is text to a reader of the screen, and none to this rule.
    const isFormula = (rule, node) =>
      rule.id === "empty-table-header" && document.querySelector(node.target[0])?.querySelector("math")?.textContent;
    return violations.flatMap((rule) =>
      rule.nodes.filter((node) => !isFormula(rule, node)).map((node) => `${rule.id}: ${node.target.join(" ")}: ${node.any[0]?.message ?? rule.help}`),
    );
  }, rules);
}

/** What is wider than the window, and neither scrolls by itself nor stands in what does. */
export async function cutOff(page) {
  await layOut(page);
  return page.evaluate(() => {
    const scrolls = (element) => {
      for (let e = element; e && e.tagName !== "ARTICLE"; e = e.parentElement)
        if (["auto", "scroll"].includes(getComputedStyle(e).overflowX)) return true;
      return false;
    };
    return [...document.querySelectorAll("article :is(table, pre, img, svg, .katex, p, code)")]
      .filter((e) => !e.closest(".katex-mathml") && e.getBoundingClientRect().width > 0)
      .filter((e) => {
        const { left, width } = e.getBoundingClientRect();
        return left + Math.max(width, e.scrollWidth) > innerWidth + 1 && !scrolls(e);
      })
      .map((e) => `${e.tagName} ${e.textContent.slice(0, 60)}`);
  });
}
