// A batch of numbers on a line, what batch norm makes of them, and what comes back.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "batch_on_a_line",
  height: 338,
  controls: [
    { name: "count", label: "examples", min: 2, max: 6, step: 1 },
    { name: "exponent", label: "ε", min: -5, max: 1, step: 1, shown: (e) => String(10 ** e) },
  ],
  initial: () => ({
    x: [-3.4, -0.6, 1.2, 2.8, -1.8, 4.4],
    dl_dy: [0.4, -1.2, 1.0, 0.2, -0.6, 0.8],
    count: 4,
    exponent: -5,
  }),

  /** Forward and backward: gain 1, bias 0. */
  numbers({ x, dl_dy, count, exponent }) {
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    const [batch, g] = [x.slice(0, count), dl_dy.slice(0, count)];
    const mu = mean(batch);
    const sigma = Math.sqrt(mean(batch.map((v) => (v - mu) ** 2)));
    const inv_std = 1 / Math.sqrt(sigma ** 2 + 10 ** exponent);
    const x_hat = batch.map((v) => (v - mu) * inv_std);
    const [of_g, along] = [mean(g), mean(g.map((v, i) => v * x_hat[i]))];
    const dl_dx = g.map((v, i) => inv_std * (v - of_g - x_hat[i] * along));
    return { mu, sigma, x_hat, dl_dx };
  },

  handles(state) {
    const moved = (name, i) => (value) => ({
      ...state,
      [name]: state[name].map((old, k) => (k === i ? value : old)),
    });
    const some = [...Array(state.count).keys()];
    return [
      ...some.map((i) => ({
        label: `x of example ${i + 1}`, value: state.x[i], min: -6, max: 6, step: 0.1,
        x: 228 + 30 * state.x[i], y: 46, unit: 30, set: moved("x", i),
      })),
      ...some.map((i) => ({
        label: `gradient that arrives at y of example ${i + 1}`, value: state.dl_dy[i],
        min: -1.5, max: 1.5, step: 0.1, x: 66 + 58 * i, y: 232 - 36 * state.dl_dy[i],
        unit: 36, is_vertical: true, set: moved("dl_dy", i),
      })),
    ];
  },

  /** The examples by their places: those whose numbers would overprint share a label. */
  labels(places) {
    const found = places.map((at, i) => ({ at, of: [i + 1] })).sort((a, b) => a.at - b.at);
    for (let k = 1; k < found.length; ) {
      const [a, b] = [found[k - 1], found[k]];
      const of = [...a.of, ...b.of].sort();
      if (b.at - a.at >= 5 * of.length) k += 1;
      else {
        const at = (a.at * a.of.length + b.at * b.of.length) / of.length;
        found.splice(k - 1, 2, { at, of });
        k = Math.max(1, k - 1);
      }
    }
    return found;
  },

  draw(state, { mu, sigma, x_hat, dl_dx }, { line, path, text, dot, box, bar, short }) {
    const [x, y] = [(v) => 228 + 30 * v, (v) => 228 + 62 * v];
    const clipped = (v) => 232 - 36 * Math.max(-1.7, Math.min(1.7, v));
    const numbered = (places, y) =>
      this.labels(places).map(({ at, of }) => text(at, y, of.join(), "middle quiet"));
    const marks = [
      ...x_hat.map((v, i) => line(x(state.x[i]), 54, y(v), 98, "thread")), // behind the labels
      box(x(mu - sigma), 35, 60 * sigma, 22, "band"),
      line(44, 46, 412, 46, "axis"), text(20, 50, "x"), line(x(mu), 32, x(mu), 60, "batch"),
      ...[-6, -3, 0, 3, 6].map((v) => text(x(v), 75, short(v, 0), "middle quiet tick")),
      line(44, 122, 412, 122, "axis"), text(20, 126, "x̂"),
      ...[-2, -1, 0, 1, 2].map((v) => text(y(v), 143, short(v, 0), "middle quiet")),
      line(44, 232, 412, 232, "axis"), text(20, 228, "gra-"), text(20, 243, "dient"),
      ...numbered(state.x.slice(0, state.count).map(x), 26), ...numbered(x_hat.map(y), 111),
    ];
    x_hat.forEach((v, i) => {
      const [column, end, down] = [66 + 58 * i, clipped(dl_dx[i]), dl_dx[i] < 0 ? 1 : -1];
      const is_clipped = Math.abs(dl_dx[i]) > 1.7;
      marks.push(
        dot(y(v), 122, 4, "fill batch"),
        bar(column, 8, 232, 232 - 36 * state.dl_dy[i], "fill none"),
        bar(column + 18, 12, 232, end, "fill batch"),
        text(column + 22, end + (down > 0 ? 14 : -5) + 9 * down * is_clipped, short(dl_dx[i]), "middle quiet"),
        text(column + 9, 331, i + 1, "middle quiet"),
      );
      const tip = [[11, 3], [18, 9], [25, 3]]; // the bar goes on
      if (is_clipped) marks.push(path(tip.map(([a, b]) => [column + a, end + down * b]), "batch"));
    });
    return marks.join("");
  },

  tell({ count }, { mu, sigma, x_hat, dl_dx }, short) {
    const list = (values) => values.map((v) => short(v)).join(", ");
    return (
      `${count} examples with mean ${short(mu)} and deviation ${short(sigma)}. ` +
      `x̂: ${list(x_hat)}. Gradients of x: ${list(dl_dx)}, together ${short(dl_dx.reduce((a, b) => a + b))}.`
    );
  },
});
