// Batches of N from one list of normal numbers: their statistics, and where a value lands.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "noise_of_small_batches",
  height: 330,
  controls: [
    { name: "exponent", label: "batch size N", min: 1, max: 6, step: 1, shown: (e) => String(2 ** e) },
  ],

  /** 512 normal numbers, the same everywhere. */
  initial() {
    let seed = 7;
    const uniform = () => ((seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) + 0.5) / 2 ** 32;
    const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    return { values: Array.from({ length: 512 }, normal), exponent: 3, x: 2 };
  },

  /** x stands in each batch in place of the first value. */
  numbers({ values, exponent, x }) {
    const N = 2 ** exponent;
    const mean = (some) => some.reduce((sum, value) => sum + value, 0) / some.length;
    const moments = (some) => {
      const mu = mean(some);
      return [mu, Math.sqrt(mean(some.map((v) => (v - mu) ** 2)))];
    };
    const batches = values.flatMap((_, i) => (i % N ? [] : [values.slice(i, i + N)]));
    const [mu, sigma] = [0, 1].map((k) => batches.map((batch) => moments(batch)[k]));
    const x_hat = batches.map(([, ...others]) => {
      const [m, s] = moments([x, ...others]);
      return (x - m) / s;
    });
    let quotient = 1 / Math.sqrt(Math.PI); // of Γ at half of n and of n−1
    for (let n = 2; n < N; n += 2) quotient *= n / (n - 1);
    const expected = quotient * Math.sqrt(2 / N);
    const spread = Math.sqrt((N - 1) / N - expected ** 2);
    return { mu, sigma, x_hat, expected, spread, of_mu: Math.sqrt(1 / N) };
  },

  handles: (state) => [{
    label: "x, one value of each batch", value: state.x, min: -4, max: 4, step: 0.1,
    x: 220 + 45 * state.x, y: 236, unit: 45, set: (x) => ({ ...state, x }),
  }],

  draw({ exponent, x }, { mu, sigma, x_hat, expected, spread, of_mu }, { line, path, text, dot, short }) {
    const [across, up, along] = [(v) => 220 + 70 * v, (v) => 186 - 70 * v, (v) => 220 + 45 * v];
    const turn = [...Array(49).keys()].map((k) => (k * Math.PI) / 24);
    const ellipse = turn.map((a) => [
      across(2 * of_mu * Math.cos(a)), Math.max(-8, Math.min(186, up(expected + 2 * spread * Math.sin(a)))),
    ]);
    const bound = Math.sqrt(2 ** exponent - 1);
    return [
      line(40, 186, 400, 186, "axis"), line(across(0), 186, across(0), 10, "thread"),
      line(40, up(1), 400, up(1), "thread"),
      text(20, up(1) + 5, "1"), text(20, 191, "0"), text(22, 26, "σ of a batch", "start"),
      ...[-2, -1, 1, 2].map((v) => text(across(v), 203, short(v, 0), "middle quiet")),
      text(across(0), 204, "μ of a batch"),
      ...mu.map((v, k) => dot(across(v), up(sigma[k]), 3, "fill batch faint")),
      path(ellipse, "reference"),
      line(28, 236, 412, 236, "axis"), text(14, 240, "x"),
      line(28, 290, 412, 290, "axis"), text(14, 294, "x̂"),
      line(along(x), 246, along(x), 300, "thread"),
      ...x_hat.map((v) => line(along(v), 276, along(v), 290, "batch faint")),
      ...[-4, -2, 0, 2, 4].map((v) => text(along(v), 322, short(v, 0), "middle quiet")),
      ...(bound < 4.2 ? [-bound, bound] : []).map((v) => line(along(v), 266, along(v), 306, "reference")),
    ].join("");
  },

  tell({ exponent, x }, { mu, sigma, x_hat, expected, spread, of_mu }, short) {
    const mean = (some) => some.reduce((a, b) => a + b) / some.length;
    const scatter = (some) => short(Math.sqrt(mean(some.map((v) => (v - mean(some)) ** 2))));
    return (
      `${mu.length} batches of ${2 ** exponent}. μ scatters by ${scatter(mu)} (in theory ${short(of_mu)}), ` +
      `σ is ${short(mean(sigma))} on average (${short(expected)}) and scatters by ${scatter(sigma)} (${short(spread)}). ` +
      `x = ${short(x, 1)} lands from ${short(Math.min(...x_hat))} to ${short(Math.max(...x_hat))}.`
    );
  },
});
