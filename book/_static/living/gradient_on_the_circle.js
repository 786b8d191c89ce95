// Three examples, seen along (1, 1, 1): what batch norm takes away from a gradient, and what passes.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "gradient_on_the_circle",
  height: 404,
  controls: [{ name: "gamma", label: "γ", min: -2, max: 2, step: 0.25 }],
  initial: () => ({ x: [1.8, -1.7, 0.5], dl_dy: [0.4, 1.1, -0.7], gamma: 1 }),

  /** dl_dy in its three parts, the gradient of x, and all of them as seen in the plane. */
  numbers({ x, dl_dy, gamma }) {
    const mean = (v) => (v[0] + v[1] + v[2]) / 3;
    const mu = mean(x);
    const centred = x.map((v) => v - mu);
    const inv_std = 1 / Math.sqrt(mean(centred.map((v) => v * v)) + 1e-5);
    const x_hat = centred.map((v) => v * inv_std);
    const common = mean(dl_dy);
    const along = mean(dl_dy.map((v, i) => v * x_hat[i]));
    const lost = x_hat.map((v) => v * along);
    const passes = dl_dy.map((v, i) => v - common - lost[i]);
    const dl_dx = passes.map((v) => gamma * inv_std * v);
    const squares = [[common, common, common], lost, passes, dl_dx].map((v) => v[0] ** 2 + v[1] ** 2 + v[2] ** 2);
    const seen = [centred, x_hat, dl_dy, lost, passes, dl_dx].map(([a, b, c]) =>
      [(a - b) / Math.sqrt(2), (a + b - 2 * c) / Math.sqrt(6)]);
    return { factor: gamma * inv_std, dl_dx, squares, seen };
  },

  handles(state) {
    const moved = (name, i) => (value) => ({
      ...state,
      [name]: state[name].map((old, k) => (k === i ? value : old)),
    });
    const row = (name, words, most, middle, unit) => [0, 1, 2].map((i) => ({
      label: `${words} of example ${i + 1}`, value: state[name][i], min: -most, max: most, step: 0.1,
      x: middle + unit * state[name][i], y: 328 + 30 * i, unit, set: moved(name, i),
    }));
    return [...row("x", "x", 2, 104, 35), ...row("dl_dy", "gradient that arrives at y", 1.2, 262, 55)];
  },

  draw(state, { factor, dl_dx, squares, seen }, { line, path, text, dot, box, short }) {
    const place = ([a, b]) => [142 + 38 * a, 142 - 38 * b];
    const arrow = (from, by, look) => {
      const [length, turn] = [38 * Math.hypot(...by), Math.atan2(-by[1], by[0])];
      const [x, y] = place(from);
      const at = (r, a, [u, v] = [x, y]) => [u + r * Math.cos(a), v + r * Math.sin(a)];
      const end = at(Math.min(length, 135), turn);
      const barb = (a) => at(-Math.min(8, length), turn + a, end);
      return path([[x, y], end, barb(0.45), end, barb(-0.45)], look);
    };
    const [centred, x_hat, g, lost, passes, dx] = seen;
    const turns = [...Array(61).keys()].map((k) => (k * Math.PI) / 30);
    const marks = [
      path(turns.map((a) => place([Math.sqrt(3) * Math.cos(a), Math.sqrt(3) * Math.sin(a)])), "axis"),
      line(...place([0, 0]), ...place(centred), "thread"), line(...place([0, 0]), ...place(x_hat), "thread"),
      arrow(x_hat, g, "other"), arrow(x_hat, lost, "reference"), arrow(x_hat, passes, "batch"), arrow(centred, dx, "layer"),
      dot(...place(centred), 4, "fill none"), dot(...place(x_hat), 4, "fill batch"),
      text(300, 24, "squared lengths", "quiet"),
    ];
    const rows = [
      ["arrives", squares[0] + squares[1] + squares[2], "other"], ["common to all", squares[0], "none"],
      ["along x̂", squares[1], "reference"], ["passes", squares[2], "batch"], [`× γ/s = ${short(factor)}`, squares[3], "layer"],
    ];
    rows.forEach(([words, square, look], k) => {
      const y = 50 + 42 * k;
      const width = Math.min(70, 16 * square);
      marks.push(text(300, y, words, "quiet"), box(300, y + 7, width, 8, `fill ${look}`));
      marks.push(text(306 + width, y + 16, short(square), "quiet"));
    });
    marks.push(text(104, 304, "x", "middle quiet"), text(262, 304, "gradient at y", "middle quiet"), text(412, 304, "at x", "end quiet"));
    dl_dx.forEach((v, i) => {
      const y = 328 + 30 * i;
      marks.push(text(14, y + 4, i + 1, "quiet"), line(34, y, 174, y, "axis"), line(196, y, 328, y, "axis"));
      marks.push(line(104, y - 4, 104, y + 4, "axis"), line(262, y - 4, 262, y + 4, "axis"), text(412, y + 4, short(v), "end quiet"));
    });
    return marks.join("");
  },

  tell(state, { factor, dl_dx, squares }, short) {
    const [common, along, passes, out] = squares.map((v) => short(v));
    return (
      `Squared length of the gradient that arrives: ${short(squares[0] + squares[1] + squares[2])}. Of it ${common} is common to all ` +
      `and ${along} lies along x̂: both are taken away. ${passes} passes; times γ/s = ${short(factor)}, squared, this is ${out}. ` +
      `Gradients of x: ${dl_dx.map((v) => short(v)).join(", ")}.`
    );
  },
});
