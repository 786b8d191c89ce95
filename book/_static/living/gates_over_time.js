// An LSTM of three units over twelve steps, with some of the hats, and its terms scaled.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "gates_over_time",
  height: 334,
  controls: [
    {
      name: "cell", label: "cell", min: 0, max: 4, step: 1,
      shown: (k) => ["plain", "p̂, q̂, ĉ", "ĉ alone", "hat of p + q, ĉ", "p̂, q̂, ĉ carried"][k],
    },
    { name: "of_h", label: "Wₕ times", min: -3, max: 3, step: 0.5, shown: (e) => (2 ** e).toFixed(2) },
    { name: "of_x", label: "x times", min: -3, max: 3, step: 0.5, shown: (e) => (2 ** e).toFixed(2) },
  ],
  initial() {
    const rows = (count, length, by) =>
      [...Array(count)].map((_, i) => [...Array(length)].map((_, k) => 1.4 * Math.sin(by * (i * length + k + 1) ** 2)));
    return { x: rows(12, 2, 1.3), w_x: rows(12, 2, 0.7), w_h: rows(12, 3, 2.1), cell: 0, of_h: 1.5, of_x: 0 };
  },

  /** Gates f, i, o, states c and h: at each step, of each unit. */
  numbers({ x, w_x, w_h, cell, of_h, of_x }) {
    const mean = (v) => v.reduce((sum, a) => sum + a, 0) / v.length;
    const hat = (v, has_one) => {
      const mu = mean(v);
      const s = Math.sqrt(mean(v.map((a) => (a - mu) ** 2)) + 1e-5);
      return has_one ? v.map((a) => (a - mu) / s) : v;
    };
    const times = (w, v, exponent) => w.map((row) => row.reduce((sum, a, k) => sum + a * v[k] * 2 ** exponent, 0));
    const logistic = (a) => 1 / (1 + Math.exp(-a));
    const of_terms = cell === 1 || cell === 4;
    let h = [0, 0, 0];
    let c = h;
    const steps = x.map((x_t) => {
      const p = hat(times(w_h, h, of_h), of_terms);
      const q = hat(times(w_x, x_t, of_x), of_terms);
      const a = hat(p.map((v, k) => v + q[k]), cell === 3);
      const f = a.slice(0, 3).map((v) => logistic(v + 1)); // forget bias 1
      const [i, o] = [3, 6].map((k) => a.slice(k, k + 3).map(logistic));
      const g = a.slice(9).map(Math.tanh);
      const raw = c.map((v, k) => f[k] * v + i[k] * g[k]);
      const u = hat(raw, cell > 0);
      c = cell === 4 ? u : raw;
      h = u.map((v, k) => o[k] * Math.tanh(v));
      return { f, i, o, c, h };
    });
    return Object.fromEntries(["f", "i", "o", "c", "h"].map((name) => [name, steps.map((s) => s[name])]));
  },

  handles: () => [],

  draw(state, found, { line, path, text, short }) {
    const before = this.numbers({ ...state, of_h: 0, of_x: 0 });
    const marks = [];
    Object.keys(found).forEach((name, row) => {
      const [low, high] = { c: [-2, 2], h: [-1, 1] }[name] ?? [0, 1];
      const y = (v) => 52 + 64 * row - (46 * (Math.max(low, Math.min(high, v)) - low)) / (high - low);
      marks.push(line(50, y(0), 412, y(0), "axis"), text(12, y((low + high) / 2) + 5, name));
      for (const end of [low, high]) marks.push(text(42, y(end) + 4, short(end, 0), "end quiet"));
      for (const unit of [0, 1, 2])
        for (const [numbers, look] of [[before, "thread"], [found, "layer"]])
          marks.push(path(numbers[name].map((v, t) => [66 + 30 * t, y(v[unit])]), look));
    });
    marks.push(text(231, 331, "step 1 to 12", "middle quiet"));
    return marks.join("");
  },

  tell(state, found, short) {
    const before = this.numbers({ ...state, of_h: 0, of_x: 0 });
    const moved = (name) =>
      short(Math.max(...found[name].flatMap((units, t) => units.map((v, k) => Math.abs(v - before[name][t][k])))));
    return (
      `Cell: ${this.controls[0].shown(state.cell)}. Wₕ times ${short(2 ** state.of_h)}, x times ${short(2 ** state.of_x)}. ` +
      `This moves f by up to ${moved("f")}, i ${moved("i")}, o ${moved("o")}, c ${moved("c")}, h ${moved("h")}.`
    );
  },
});
