// A moving average of values that scatter and drift: what its start, its lag and noise do to it.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "moving_average_start",
  height: 334,
  controls: [
    { name: "nines", label: "α", min: 0.25, max: 3, step: 0.25, shown: (n) => (1 - 10 ** -n).toFixed(3) },
    { name: "drift", label: "drift in 100 steps", min: -1.5, max: 1.5, step: 0.5 },
    { name: "scatter", label: "scatter", min: 0, max: 1, step: 0.1 },
  ],

  /** 200 normal numbers, the same everywhere. */
  initial() {
    let seed = 7;
    const uniform = () => ((seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) + 0.5) / 2 ** 32;
    const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    return { noise: Array.from({ length: 200 }, normal), nines: 2, drift: 0, scatter: 0.5, start: 0, step: 50 };
  },

  /** The average from its start, and from 0 debiased; the parts of their errors at a step. */
  numbers({ noise, nines, drift, scatter, start, step }) {
    const alpha = 1 - 10 ** -nines;
    const truth = noise.map((_, t) => 3 + (drift / 100) * t);
    const values = truth.map((v, t) => v + scatter * noise[t]);
    const follow = (some, first) => {
      let average = first;
      return some.map((v) => (average = alpha * average + (1 - alpha) * v));
    };
    const cured = (v, t) => v / (1 - alpha ** (t + 1));
    const now = truth[step - 1];
    const at = (some, first) => follow(some.slice(0, step), first)[step - 1];
    const parts = [at(noise.map(() => 0), start - now), at(truth.map((v) => v - now), 0), at(noise.map((v) => scatter * v), 0)];
    const spread = scatter * Math.sqrt(((1 - alpha) / (1 + alpha)) * (1 - alpha ** (2 * step)));
    return {
      truth, values, as_is: follow(values, start), debiased: follow(values, 0).map(cured),
      parts, cured: parts.map((v, k) => k && cured(v, step - 1)), spread, cured_spread: cured(spread, step - 1),
    };
  },

  handles: (state) => [
    {
      label: "start of the average", value: state.start, min: -1, max: 6, step: 0.1, x: 34, y: 186 - 26 * state.start,
      unit: 26, is_vertical: true, set: (start) => ({ ...state, start }),
    },
    {
      label: "step at which the errors are taken", value: state.step, min: 1, max: 200, step: 1, x: 34 + 1.85 * state.step,
      y: 212, unit: 1.85, set: (step) => ({ ...state, step }),
    },
  ],

  draw({ step, start }, n, { line, path, text, bar, box, short }) {
    const x = (t) => 34 + 1.85 * t;
    const y = (v) => 186 - 26 * Math.max(-1, Math.min(6.5, v));
    const curve = (values, look) => path(values.map((v, t) => [x(t + 1), y(v)]), look);
    const marks = [
      line(34, 212, 404, 212, "axis"), line(34, 212, 34, 20, "axis"),
      ...[0, 3, 6].map((v) => text(18, y(v) + 4, v, "end quiet")), text(404, 231, "200 steps", "end quiet"),
      line(x(step), 212, x(step), 20, "thread"), curve(n.values, "none faint"), line(x(1), y(n.truth[0]), x(200), y(n.truth[199]), "reference"),
      path([[34, y(start)], ...n.as_is.map((v, t) => [x(t + 1), y(v)])], "batch"), curve(n.debiased, "other"),
      text(12, 254, `error at ${step} by`, "quiet"), text(200, 254, "from its start", "middle quiet"), text(336, 254, "debiased", "middle quiet"),
    ];
    ["the start", "lag", "noise", "all three"].forEach((words, row) => {
      const at = 274 + 18 * row;
      marks.push(text(12, at, words, "quiet"));
      [[n.parts, 170, "batch"], [n.cured, 306, "other"]].forEach(([parts, zero, look]) => {
        const v = row < 3 ? parts[row] : parts.reduce((sum, part) => sum + part, 0);
        const length = 14 * Math.max(-3.5, Math.min(3.5, v));
        marks.push(box(zero + Math.min(0, length), at - 9, Math.abs(length), 9, `fill ${look}`));
        marks.push(line(zero, at - 12, zero, at + 3, "axis"), text(zero + 96, at, short(v), "end quiet"));
      });
    });
    return marks.join("");
  },

  tell({ step, nines }, { parts, cured, spread, cured_spread }, short) {
    const of = (some, sd) => `start ${short(some[0])}, lag ${short(some[1])}, noise ${short(some[2])} (typically ${short(sd)})`;
    return (
      `α = ${short(1 - 10 ** -nines, 3)}. Error after ${step} steps: ${of(parts, spread)}. ` +
      `Debiased: ${of(cured, cured_spread)}.`
    );
  },
});
