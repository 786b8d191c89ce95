// Run by `make test-site`: on all pages, and on some where SITE_PAGES is not "all".
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { barriers, cutOff, FIGURES, launch, layOut, open, PAGES, pageWith, SITE } from "./browser.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** Open a page for a test, which ends without complaints of the console. */
async function on(name, settings, act) {
  const { page, wrong, close } = await open(browser, name, settings);
  try {
    await act(page);
    assert.deepEqual(wrong, []);
  } finally {
    await close();
  }
}

for (const name of PAGES) {
  test(`${name}: no barrier in light and dark, no error, no other host`, () =>
    on(name, {}, async (page) => {
      assert.deepEqual(await barriers(page), []);
      await page.emulateMedia({ colorScheme: "dark" });
      await page.waitForFunction(() => document.documentElement.dataset.theme !== "light");
      assert.deepEqual(await barriers(page, ["color-contrast"]), []);
    }));

  test(`${name}: on a phone nothing is cut off or too small for a finger`, () =>
    on(name, { width: 390, height: 844 }, async (page) => {
      assert.deepEqual(await cutOff(page), []);
      assert.deepEqual(await barriers(page, ["target-size"]), []);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    }));
}

test("a barrier, a wide thing and an error are noticed", async () => {
  const { page, wrong, close } = await open(browser, "book/index.html", { width: 390 });
  await page.evaluate(() => {
    document.querySelector("article").insertAdjacentHTML(
      "beforeend",
      '<button></button><p style="white-space:nowrap">' + "wide ".repeat(99) + "</p>",
    );
    const image = new Image();
    image.src = "https://elsewhere.test/a.png";
  });
  assert.match((await barriers(page)).join("\n"), /button-name/);
  assert.match((await cutOff(page)).join("\n"), /^P wide wide/);
  await page.waitForTimeout(100);
  assert.match(wrong.join("\n"), /elsewhere|Content Security Policy/);
  await close();
});

test("the colours change by the button, and stay so", () =>
  on("book/index.html", {}, async (page) => {
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    const button = page.locator(".theme-switch-button").first();
    for (let k = 0; (await theme()) !== "dark"; k++) {
      assert.ok(k < 3);
      await button.click();
    }
    await page.reload();
    assert.equal(await theme(), "dark");
  }));

test("code is folded, one click opens all, and other pages remember it", () =>
  on("book/layer_norm.html", {}, async (page) => {
    const open = () => page.locator("article details.hide[open]").count();
    assert.equal(await open(), 0);
    await page.getByRole("button", { name: "Show all code" }).click();
    const all = await page.locator("article details.hide").count();
    assert.ok(all > 5);
    assert.equal(await open(), all);
    await page.goto(page.url().replace("layer_norm", "lstm"));
    assert.ok((await open()) > 5);
    await page.getByRole("button", { name: "Show all code" }).click();
    assert.equal(await open(), 0);
  }));

/** Wait until an element is seen, in the upper half of the window. */
const isRead = async (page, id) => {
  await page.locator(`#${id}`).waitFor({ state: "visible", timeout: 5000 });
  await page.waitForFunction((id) => {
    const { top } = document.getElementById(id).getBoundingClientRect();
    return top >= 0 && top < innerHeight / 2;
  }, id, { timeout: 5000 });
};
const still = { reducedMotion: "reduce" }; // a page glides to a target otherwise

test("a link opens the solution that it leads to: from elsewhere, on the page, once more", () =>
  on("book/handwriting.html#sol-hw-factor", still, async (page) => {
    const inside = (id) => page.locator(`#${id} > section > p`).first();
    await inside("sol-hw-factor").waitFor({ timeout: 5000 });
    assert.equal(await page.locator(".solution.toggle-hidden").count(), 2); // the others
    await page.locator("#sol-hw-factor .toggle-button").click();
    await inside("sol-hw-factor").waitFor({ state: "hidden" });
    await page.evaluate(() => {
      for (const id of ["sol-hw-factor", "sol-hw-bias"])
        document.querySelector("article h1").insertAdjacentHTML("afterend", `<a href="#${id}">to ${id}</a> `);
    });
    for (const id of ["sol-hw-factor", "sol-hw-bias"]) {
      await page.getByText(`to ${id}`).click();
      await inside(id).waitFor({ timeout: 5000 });
      await isRead(page, id);
    }
  }));

test("a link opens the box around its target: a dropdown, a solution", () =>
  on("book/internal_covariate_shift.html", still, async (page) => {
    const id = "equation-eq-ics-two-levels";
    assert.equal(await page.locator(`#${id}`).isVisible(), false);
    await page.evaluate((id) => {
      history.replaceState(null, "", `#${id}`); // browsers of today open it, but not for this
      dispatchEvent(new HashChangeEvent("hashchange"));
    }, id);
    await isRead(page, id);
    const code = page.locator(".solution.toggle-hidden pre[id]").first();
    const inner = await code.getAttribute("id");
    await page.evaluate((id) => (location.hash = id), inner);
    await isRead(page, inner);
  }));

test("a link in the title of a solution leads to its exercise, and the box stays", () =>
  on("book/handwriting.html", still, async (page) => {
    const title = page.locator("#sol-hw-factor > .admonition-title");
    await title.locator("a").click();
    await isRead(page, "ex-hw-factor");
    assert.equal(await page.locator("#sol-hw-factor.toggle-hidden").count(), 1);
  }));

test("a quiz says what is right, counts first choices alone, remembers and forgets", () =>
  on("book/scale_invariance.html", still, async (page) => {
    const option = (words) => page.locator("details.quiz-option", { hasText: words });
    const told = page.locator(".quiz-progress [role=status]");
    const is = (words) => told.textContent().then((text) => assert.match(text, words));
    await is(/Here: 0 of 3 answered, 0 right .* book: 0 answered/);
    await option("half as large").first().locator("summary").click();
    assert.match(await option("half as large").first().locator("summary").innerText(), /not so/);
    await is(/Here: 1 of 3 answered, 0 right/);
    await option("a quarter").locator("summary").press("Enter"); // not the first choice
    assert.match(await option("a quarter").locator("summary").innerText(), /right/);
    await is(/Here: 1 of 3 answered, 0 right/);
    await option("the range is wider").locator("summary").press("Enter");
    await is(/Here: 2 of 3 answered, 1 right/);
    await page.reload();
    await is(/Here: 2 of 3 answered, 1 right/);
    assert.equal(await page.locator(".quiz-verdict").count(), 2);
    await page.goto(page.url().replace("scale_invariance", "lstm"));
    await is(/Here: 0 of \d answered, 0 right .* book: 2 answered, 1 right/);
    await page.getByRole("button", { name: "Forget my answers" }).click();
    await is(/book: 0 answered/);
    assert.equal(await page.evaluate(() => localStorage.getItem("normbook-quiz")), null);
    await page.evaluate(() => localStorage.setItem("normbook-quiz", "[not ours"));
    await page.reload();
    await is(/book: 0 answered/);
  }));

test("a button copies the code of a cell", () =>
  on("book/batch_norm.html", {}, async (page) => {
    await page.evaluate(() => {
      document.addEventListener("copy", () => (window.copied = document.activeElement.value));
    });
    const cell = page.locator("article .cell_input:visible").first();
    await cell.hover();
    await cell.locator("button.copybtn").click();
    const code = (await cell.locator("pre").innerText()).trim();
    await page.waitForFunction(() => window.copied);
    assert.equal((await page.evaluate(() => window.copied)).trim(), code);
  }));

// What people type, and a section or page that must be among the first five results.
const SEARCHES = {
  BN: "glossary.html#term-batch-normalization",
  running_var: "notation.html#row-",
  gamma: "notation.html#row-",
  eval: "glossary.html#term-evaluation-mode",
  conv: "batch_norm.html#sec-bn-axes",
  "more than 1 value per channel": "failures_batches.html",
  "freeze batch norm": "failures_freezing.html#gal-freeze",
  "statistics updated twice": "failures_state.html#gal-checkpoint",
};
for (const [typed, address] of Object.entries(SEARCHES))
  test(`the search leads from "${typed}" to ${address}`, () =>
    on(`search.html?q=${encodeURIComponent(typed)}`, {}, async (page) => {
      await page.waitForSelector("#search-results li a");
      await page.waitForFunction(() => !document.querySelector("#search-results h2")?.textContent.startsWith("Searching"));
      const found = await page.locator("#search-results li > a:first-of-type").evaluateAll((all) => all.map((a) => a.href));
      assert.ok(found.slice(0, 5).some((href) => href.includes(address)), found.slice(0, 5).join("\n"));
    }));

test("an address of a page that was split leads to the part", () =>
  on("book/train_and_eval.html#equation-eq-gal-shift", still, async (page) => {
    await page.waitForURL(/failures_modes\.html#equation-eq-gal-shift$/);
    await isRead(page, "equation-eq-gal-shift");
    await page.goto(page.url().replace(/failures_modes.*/, "train_and_eval.html#def-gal-state"));
    await isRead(page, "def-gal-state");
    assert.match(page.url(), /train_and_eval\.html#def-gal-state$/);
  }));

test("what one types in a search stands beside the sign of it", () =>
  on("search.html?q=BN", { width: 390 }, async (page) => {
    const [sign, letters] = await page.locator(".bd-search-container form.bd-search").evaluate((form) => {
      const input = form.querySelector("input");
      const begin = input.getBoundingClientRect().left + parseFloat(getComputedStyle(input).paddingLeft);
      return [form.querySelector("i").getBoundingClientRect().right, begin];
    });
    assert.ok(sign < letters, `${sign} ${letters}`);
  }));

test("a result names the section and shows no source of a formula", () =>
  on("search.html?q=projection+orthogonal", {}, async (page) => {
    await page.waitForFunction(() => document.querySelectorAll("#search-results p.context").length > 3);
    const results = page.locator("#search-results ul.search > li");
    assert.doesNotMatch((await results.allInnerTexts()).join("\n"), /\\[a-z]+|\$/);
    const section = results.locator("a + a").first();
    await section.click();
    await page.waitForURL(/book.*#/);
    const id = new URL(page.url()).hash.slice(1);
    await page.locator(`section[id="${id}"]`).waitFor({ state: "attached" });
  }));

test("by the keyboard: the first stop leads past the navigation, each stop is seen", () =>
  on("book/batch_norm.html", {}, async (page) => {
    await page.keyboard.press("Tab");
    const first = await page.evaluate(() => document.activeElement.getAttribute("href"));
    assert.equal(first, "#main-content");
    for (let k = 0; k < 60; k++) {
      await page.keyboard.press("Tab");
      const seen = await page.evaluate(() => {
        const e = document.activeElement;
        const style = getComputedStyle(e);
        const box = e.getBoundingClientRect();
        const isMarked = style.outlineStyle !== "none" || style.boxShadow !== "none";
        return { what: e.outerHTML.slice(0, 120), isFine: isMarked && box.width > 0 };
      });
      assert.ok(seen.isFine, seen.what);
    }
  }));

test("the contents of a page mark the section that is read, and what it stands in", () =>
  on("book/transformers.html", still, async (page) => {
    const marked = () => page.locator("#pst-page-toc-nav a.active").evaluateAll((all) => all.map((a) => a.hash));
    const id = "which-axis";
    await page.goto(`${page.url()}#${id}`);
    await isRead(page, id);
    await page.waitForFunction(() => document.querySelector('#pst-page-toc-nav a.active[href="#which-axis"]'));
    assert.deepEqual(await marked(), ["#definition-before-or-after-the-sum", `#${id}`]);
    await page.evaluate(() => scrollTo(0, document.getElementById("you-will").offsetTop - innerHeight / 10));
    await page.waitForFunction(() => !document.querySelector('#pst-page-toc-nav a.active[href="#which-axis"]'));
    assert.deepEqual(await marked(), ["#you-will"]);
  }));

test("what scrolls by itself is reached by the keyboard, what does not is no stop", () =>
  on("book/layer_norm.html", { width: 390 }, async (page) => {
    const blocks = page.locator("article :is(pre, .pst-scrollable-table-container)");
    const found = { scrolls: 0, stays: 0 };
    for (const block of await blocks.all()) {
      if (!(await block.isVisible())) continue;
      await block.scrollIntoViewIfNeeded();
      await page.waitForTimeout(50);
      const [scrolls, stop] = await block.evaluate((e) => [e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight, e.tabIndex]);
      assert.equal(stop, scrolls ? 0 : -1, await block.innerText());
      found[scrolls ? "scrolls" : "stays"] += 1;
    }
    assert.ok(found.scrolls > 0 && found.stays > 0, JSON.stringify(found));
  }));

test("lines of prose have 65 to 80 characters", () =>
  on("book/batch_norm.html", {}, async (page) => {
    await layOut(page);
    const lengths = await page.evaluate(() => {
      const long = [...document.querySelectorAll("article section > p")].filter((p) => !p.querySelector(".math") && p.innerText.length > 200);
      return long.map((p) => {
        const range = document.createRange();
        range.selectNodeContents(p);
        const lines = new Set([...range.getClientRects()].map((r) => Math.round(r.bottom / 12)));
        return p.innerText.length / lines.size;
      });
    });
    const mean = lengths.reduce((a, b) => a + b) / lengths.length;
    assert.ok(mean > 60 && mean < 80, String(mean));
  }));

// --- figures that answer back: each is moved, and says what its script computes

const require = createRequire(import.meta.url);
const folder = join(SITE, "_static/living/");
const { words } = require(join(folder, "living.js"));
const figures = FIGURES.map((name) => [name, require(join(folder, `${name}.js`))]);

for (const [name, figure] of figures)
  test(`figure ${name} answers to pointer and keyboard`, () =>
    on(pageWith(name), {}, async (page) => {
      const place = page.locator(`[data-living="${name}"]`);
      await place.scrollIntoViewIfNeeded();
      const svg = place.locator("svg").first();
      const says = (state) => svg.getAttribute("aria-label").then((told) => assert.equal(told, words(figure, state)));
      const begin = figure.initial();
      await says(begin);

      for (const control of figure.controls) {
        const input = place.locator(`[name=${control.name}]`);
        await input.press(Number(begin[control.name]) < control.max ? "ArrowRight" : "ArrowLeft");
        const value = Number(await input.inputValue());
        assert.notEqual(value, begin[control.name], control.name);
        await says({ ...begin, [control.name]: value });
        await place.getByRole("button", { name: "Begin again" }).click();
        await says(begin);
      }

      const handles = figure.handles(begin);
      if (handles.length === 0) return;
      const [first] = handles;
      const dot = place.locator('svg [role="slider"]').first();
      const now = () => dot.getAttribute("aria-valuenow").then(Number);
      await dot.press(first.value < first.max ? "ArrowUp" : "ArrowDown");
      assert.notEqual(await now(), first.value);
      await says(first.set(await now()));
      await place.getByRole("button", { name: "Begin again" }).click();

      await dot.scrollIntoViewIfNeeded(); // the button stands below a figure as high as the window
      const box = await dot.boundingBox();
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
      await page.mouse.move(x, y);
      await page.mouse.down();
      await page.mouse.move(x - 60, y - 60, { steps: 4 });
      await page.mouse.up();
      assert.notEqual(await now(), first.value);
      await says(first.set(await now()));
    }));
