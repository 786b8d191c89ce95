// A weight of two numbers in front of batch norm, 100 steps of plain SGD with weight decay.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "rolling_weight",
  height: 318,
  controls: [
    { name: "rate", label: "η", min: -2, max: 2, step: 0.5, shown: (e) => (2 ** e).toFixed(2) },
    { name: "decay", label: "λ", min: 0, max: 0.05, step: 0.005, shown: (v) => v.toFixed(3) },
    { name: "start", label: "‖w‖ at the start", min: -2, max: 3, step: 0.5, shown: (e) => (2 ** e).toFixed(2) },
  ],

  /** To which side each gradient points, by lot, the same everywhere. */
  initial() {
    let seed = 7;
    const bit = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) >>> 31;
    return { sides: Array.from({ length: 100 }, () => (bit() ? 1 : -1)), rate: 0, decay: 0.02, start: 0 };
  },

  /** The gradient lies across w and is 1 long where w is: its length is 1 by that of w. */
  numbers({ sides, rate, decay, start }) {
    const eta = 2 ** rate;
    let w = [0.6 * 2 ** start, 0.8 * 2 ** start];
    const path = [w];
    const angle = sides.map((side) => {
      const [a, b] = w;
      const q = a * a + b * b;
      const g = [(-side * b) / q, (side * a) / q];
      w = w.map((v, k) => (1 - eta * decay) * v - eta * g[k]);
      path.push(w);
      return Math.abs(Math.atan2(a * w[1] - b * w[0], a * w[0] + b * w[1]));
    });
    const length = path.map((v) => Math.hypot(...v));
    const balance = (eta / (decay * (2 - eta * decay))) ** 0.25;
    return { path, angle, length, effective: length.map((v) => eta / v ** 2), balance, turn: Math.acos(1 - eta * decay) };
  },

  handles: () => [],

  draw(state, found, { line, path, text, dot, short }) {
    const plain = this.numbers({ ...state, decay: 0 });
    const has_decay = state.decay > 0;
    const far = Math.max(...found.length, has_decay ? found.balance : 0);
    const place = ([a, b]) => [100 + (90 * a) / far, 120 - (90 * b) / far];
    const ring = (r) => path([...Array(61).keys()].map((k) => place([r * Math.cos((k * Math.PI) / 30), r * Math.sin((k * Math.PI) / 30)])), "reference");
    const marks = [
      line(6, 120, 194, 120, "axis"), line(100, 26, 100, 214, "axis"), text(100, 18, `w, to ±${short(far)}`, "middle quiet"),
      has_decay ? ring(found.balance) : "",
      path(found.path.map(place), "batch"), dot(...place(found.path[0]), 4, "fill layer"), dot(...place(found.path[100]), 4, "fill batch"),
    ];
    ["without decay", "with decay", "balance"].forEach((words, k) => {
      marks.push(line(14, 244 + 20 * k, 40, 244 + 20 * k, ["none", "batch", "reference"][k]), text(48, 248 + 20 * k, words, "quiet"));
    });
    const degrees = (v) => (180 * v) / Math.PI;
    const exponent = (v) => Math.max(-3, Math.min(2, Math.log10(v)));
    const charts = [
      ["‖w‖", (v) => Math.log10(v / 2), -1, 1, plain.length, found.length, found.balance],
      ["η/‖w‖²", exponent, -3, 2, plain.effective, found.effective, 2 ** state.rate / found.balance ** 2],
      ["turn of a step (°)", degrees, 0, 90, plain.angle, found.angle, found.turn],
    ];
    charts.forEach(([words, of, low, high, grey, blue, level], k) => {
      const y = (v) => 88 + 104 * k - (66 * (of(v) - low)) / (high - low);
      const bottom = 88 + 104 * k;
      marks.push(line(250, bottom, 410, bottom, "axis"), line(250, bottom, 250, bottom - 66, "axis"), text(258, bottom - 70, words, "quiet"));
      [low, high].forEach((v, i) => marks.push(text(244, bottom + 4 - 66 * i, [["0.2", 20], ["0.001", 100], [0, 90]][k][i], "end quiet")));
      if (has_decay) marks.push(line(250, y(level), 410, y(level), "reference"));
      for (const [values, look] of [[grey, "none"], [blue, "batch"]])
        marks.push(path(values.map((v, t) => [250 + 1.6 * t, y(v)]), look));
    });
    marks.push(text(410, 313, "100 steps", "end quiet"));
    return marks.join("");
  },

  tell(state, { length, effective, angle, balance, turn }, short) {
    const degrees = (v) => short((180 * v) / Math.PI, 1);
    const [eta, end] = [2 ** state.rate, [length, effective].map((v) => `${short(v[0], 3)} to ${short(v[100], 3)}`)];
    return (
      `Length of w from ${end[0]}, effective rate from ${end[1]}, turn of a step from ${degrees(angle[0])} to ${degrees(angle[99])} degrees. ` +
      (state.decay > 0
        ? `Balance: length ${short(balance)}, turn ${degrees(turn)} degrees; √(2ηλ) is ${degrees(Math.sqrt(2 * eta * state.decay))}.`
        : "Without decay there is no balance.")
    );
  },
});
