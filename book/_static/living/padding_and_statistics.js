// A padded batch of sequences: statistics of the live values, and of all.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "padding_and_statistics",
  height: 318,
  controls: [
    { name: "shift", label: "added to x", min: -4, max: 4, step: 0.5 },
    { name: "is_per_step", label: "statistics", min: 0, max: 1, step: 1, shown: (is) => (is ? "each step" : "all steps") },
  ],
  initial: () => ({
    x: [
      [0.3, -1.1, 0.8, 1.5, -0.4, 0.6, -1.3, 0.2], [-0.7, 0.9, -1.6, 0.1, 1.2, -0.2, 0.5, -0.9],
      [1.4, 0.4, -0.5, -1.2, 0.7, 1.1, -0.6, 0.3], [-1.5, -0.1, 1.0, 0.2, -0.8, 1.3, 0.4, -1.0],
    ],
    lengths: [8, 6, 4, 3],
    shift: 2,
    is_per_step: 0,
  }),

  /** A group shares statistics: all steps, or each; x̂ is that of live values. */
  numbers({ x, lengths, shift, is_per_step }) {
    const mean = (some) => some.reduce((sum, v) => sum + v, 0) / some.length;
    const cells = x.flatMap((row, i) => row.map((v, t) => ({ v: v + shift, t: is_per_step && t, is_live: t < lengths[i] })));
    const live = cells.filter((cell) => cell.is_live);
    const groups = [...new Set(live.map(({ t }) => t))].sort().map((t) => {
      const own = live.filter((cell) => cell.t === t).map(({ v }) => v);
      const p = 1 - own.length / cells.filter((cell) => cell.t === t).length;
      const mu = mean(own);
      const variance = mean(own.map((v) => (v - mu) ** 2));
      const m = (1 - p) * mu;
      const v = (1 - p) * variance + p * (1 - p) * mu ** 2;
      return { p, mu, m, sigma: Math.sqrt(variance), s: Math.sqrt(v), inv_std: 1 / Math.sqrt(variance + 1e-5), of_all: 1 / Math.sqrt(v + 1e-5) };
    });
    const list = (of) => groups.map(of);
    return {
      p: list((g) => g.p), mu: list((g) => g.mu), m: list((g) => g.m), sigma: list((g) => g.sigma), s: list((g) => g.s),
      x_hat: live.map(({ v, t }) => (v - groups[t].mu) * groups[t].inv_std),
      with_zeros: live.map(({ v, t }) => (v - groups[t].m) * groups[t].of_all),
      zeros: list((g) => (0 - g.m) * g.of_all),
    };
  },

  handles: (state) => state.lengths.map((value, i) => ({
    label: `length of sequence ${i + 1}`, value, min: 1, max: 8, step: 1,
    x: 92 + 38 * value, y: 18 + 25 * i, unit: 38,
    set: (length) => ({ ...state, lengths: state.lengths.map((old, k) => (k === i ? length : old)) }),
  })),

  draw({ x, lengths, shift, is_per_step }, n, { line, text, dot, box, short }) {
    const along = (v) => 244 + 46 * Math.max(-3.5, Math.min(3.5, v));
    const row = (y, words, values, look) => [
      text(2, y, words, "quiet"),
      ...values.map((v, t) => text(is_per_step ? 111 + 38 * t : 244, y, short(v), `middle quiet`)),
      line(86, y - 4, 92, y - 4, look),
    ];
    return [
      ...lengths.map((length, i) => box(92, 7 + 25 * i, 38 * length, 22, "band")),
      ...x.flatMap((values, i) => values.map((v, t) =>
        text(111 + 38 * t, 22 + 25 * i, t < lengths[i] ? short(v + shift, 1) : "0", "middle quiet"))),
      ...row(128, "live mean μ", n.mu, "batch"), ...row(145, "with zeros m", n.m, "none"),
      ...row(167, "live σ", n.sigma, "batch"), ...row(184, "with zeros √v", n.s, "none"),
      line(80, 220, 410, 220, "axis"), text(2, 224, "x̂ live", "quiet"),
      line(80, 280, 410, 280, "axis"), text(2, 284, "x̂, zeros too", "quiet"),
      ...n.x_hat.map((v, k) =>
        line(along(v), 220, along(n.with_zeros[k]), 280, "thread") + dot(along(v), 220, 4, "fill batch faint") +
        dot(along(n.with_zeros[k]), 280, 4, "fill none faint")),
      ...n.zeros.map((v, k) => (n.p[k] ? dot(along(v), 280, 5, "fill reference") : "")),
      ...[-3, -2, -1, 0, 1, 2, 3].map((v) => text(along(v), 306, short(v, 0), "middle quiet")),
    ].join("");
  },

  tell({ is_per_step, lengths }, { p, mu, m, sigma, s, x_hat, with_zeros }, short) {
    const of = (values) => values.map((v) => short(v)).join(", ");
    return (
      `Lengths ${lengths.join(", ")} of 8; statistics of ${is_per_step ? "each step" : "all steps"}; padding ${of(p)}. ` +
      `Live mean ${of(mu)}, with zeros ${of(m)}; live deviation ${of(sigma)}, with zeros ${of(s)}. ` +
      `The first value becomes ${short(x_hat[0])}, with zeros ${short(with_zeros[0])}.`
    );
  },
});
