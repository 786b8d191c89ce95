// A network of three tanh units without and with batch norm, walking along its gradient.
"use strict";

(typeof module === "undefined" ? living.add : (figure) => (module.exports = figure))({
  name: "loss_along_the_gradient",
  height: 330,
  controls: [
    { name: "rate", label: "longest η", min: -3, max: 4, step: 0.5, shown: (e) => (2 ** e).toFixed(2) },
    { name: "by_distance", label: "equal", min: 0, max: 1, step: 1, shown: (is) => (is ? "distance" : "rate η") },
    { name: "offset", label: "added to the inputs", min: -3, max: 3, step: 0.5 },
    { name: "scale", label: "W times", min: -2, max: 2, step: 0.5, shown: (e) => (2 ** e).toFixed(2) },
  ],
  initial: () => ({
    x: [[-1.2, 0.4], [0.7, 1.1], [1.5, -0.8], [-0.3, -1.4], [0.2, 0.9], [-0.9, -0.2]],
    target: [1, -1, 0.5, -0.5, -1, 1],
    w: [0.9, -0.4, 0.6, 0.3, 0.8, -0.7],
    v: [0.8, -0.6, 1.0],
    rate: 1, by_distance: 0, offset: 2, scale: 0,
  }),

  /** Without and with the layer (gain 1, bias 0), at twelve steps along the gradient. */
  numbers({ x, target, w, v, rate, by_distance, offset, scale }) {
    const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
    const mean = (a) => dot(a, a.map(() => 1 / a.length));
    const norm = (a) => Math.sqrt(dot(a, a));
    const inputs = [0, 1].map((d) => x.map((row) => row[d] + offset));
    const at = (has_norm, theta) => {
      const units = [0, 1, 2].map((u) => {
        const a = inputs[0].map((value, n) => value * theta[u] + inputs[1][n] * theta[u + 3]);
        const mu = mean(a);
        const inv_std = 1 / Math.sqrt(mean(a.map((value) => (value - mu) ** 2)) + 1e-5);
        const hat = has_norm ? a.map((value) => (value - mu) * inv_std) : a;
        return { inv_std, hat, z: hat.map(Math.tanh), out: theta[u + 6] };
      });
      const error = target.map((t, n) => dot(units.map(({ z }) => z[n]), units.map(({ out }) => out)) - t);
      const slopes = units.map(({ inv_std, hat, z, out }) => {
        const g = z.map((value, n) => error[n] * out * (1 - value ** 2));
        const [of_g, along] = [mean(g), mean(g.map((value, n) => value * hat[n]))];
        return has_norm ? g.map((value, n) => inv_std * (value - of_g - hat[n] * along)) : g;
      });
      const sums = [...inputs.flatMap((of) => slopes.map((s) => dot(of, s))), ...units.map(({ z }) => dot(z, error))];
      return { loss: dot(error, error) / 2 / x.length, gradient: sums.map((s) => s / x.length) };
    };
    const theta = [...w.map((value) => value * 2 ** scale), ...v];
    const starts = [0, 1].map((has_norm) => at(has_norm, theta));
    const length = starts.map(({ gradient }) => norm(gradient));
    const walks = starts.map(({ gradient }, has_norm) =>
      [...Array(12)].map((_, k) => {
        const eta = ((k + 1) / 12) * 2 ** rate * (by_distance ? length[0] / length[has_norm] : 1);
        const there = at(has_norm, theta.map((value, i) => value - eta * gradient[i]));
        const change = norm(there.gradient.map((value, i) => value - gradient[i]));
        return { loss: there.loss, change, S: change / (eta * length[has_norm]) };
      }),
    );
    const of = (name) => walks.map((walk) => walk.map((step) => step[name]));
    return { loss: starts.map((s) => s.loss), length, losses: of("loss"), changes: of("change"), S: of("S").map((s) => Math.max(...s)) };
  },

  handles: () => [],

  draw({ rate, by_distance }, { loss, length, losses, changes, S }, { line, path, text, short }) {
    const end = 2 ** rate * (by_distance ? length[0] : 1);
    const across = (k) => 40 + 30 * k;
    const marks = [];
    [["loss", losses, loss, 2, 150], ["gradient change", changes, [0, 0], 3, 300]].forEach(([name, walks, first, top, y]) => {
      const up = (value) => y - (115 * Math.min(top, value)) / top;
      marks.push(line(40, y, 400, y, "axis"), line(40, y, 40, up(top), "axis"), text(48, y - 117, name, "start"));
      marks.push(text(32, y + 4, 0, "end quiet"), text(32, up(top) + 4, top, "end quiet"));
      ["none", "batch"].forEach((look, k) =>
        marks.push(path([first[k], ...walks[k]].map((value, at) => [across(at), up(value)]), look)));
    });
    marks.push(text(400, 320, `${by_distance ? "distance" : "η"} ${short(end)}`, "end quiet"), text(40, 320, "0", "middle quiet"));
    ["none", "batch"].forEach((look, k) => {
      const x = 60 + 190 * k;
      marks.push(line(x, 11, x + 22, 11, look), text(x + 28, 16, `${["without", "batch norm"][k]}: S ${short(S[k])}`, "start quiet"));
    });
    return marks.join("");
  },

  tell({ by_distance }, { loss, losses, changes, S }, short) {
    const of = (k) =>
      `loss ${short(loss[k])}, then ${short(Math.min(...losses[k]))} to ${short(Math.max(...losses[k]))}, ` +
      `gradient change up to ${short(Math.max(...changes[k]))}, S ${short(S[k])}`;
    return `At equal ${by_distance ? "distance" : "rate"}. Without: ${of(0)}. With batch norm: ${of(1)}.`;
  },
});
