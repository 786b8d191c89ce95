// Draw each living figure as it begins, for pages without scripts: node tools/draw_stills.js
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const folder = path.join(__dirname, "../book/_static/living");
const living = require(path.join(folder, "living.js"));
for (const file of fs.readdirSync(folder)) {
  if (!file.endsWith(".js") || file === "living.js") continue;
  const figure = require(path.join(folder, file));
  fs.writeFileSync(path.join(folder, `${figure.name}.svg`), living.still(figure));
}
