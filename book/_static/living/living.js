// What living figures share. A figure is a function of its state: `numbers` computes what
// the tests hold to normbook, `draw` gives the inside of an SVG, `tell` the same in words.
// Here are its controls: sliders below it, handles in it, for pointer, touch and keyboard.
"use strict";

const living = (() => {
  const figures = new Map();
  const WIDTH = 420; // a phone's, nearly

  /** A number in few digits, with a true minus and no -0. */
  const short = (value, digits = 2) => {
    const text = Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(digits);
    return text.replace(/^-(0(?:\.0*)?)$/, "$1").replace("-", "−");
  };
  const at = (value) => Math.round(10 * value) / 10; // a place in the picture, in few bytes

  /** Marks, as text: the same in a page and where stills are drawn. */
  const pen = {
    short,
    line: (x1, y1, x2, y2, look) =>
      `<line class="${look}" x1="${at(x1)}" y1="${at(y1)}" x2="${at(x2)}" y2="${at(y2)}"/>`,
    path: (points, look) =>
      `<polyline class="${look}" points="${points.map(([x, y]) => `${at(x)},${at(y)}`).join(" ")}"/>`,
    dot: (x, y, r, look) => `<circle class="${look}" cx="${at(x)}" cy="${at(y)}" r="${r}"/>`,
    box: (x, y, width, height, look) =>
      `<rect class="${look}" x="${at(x)}" y="${at(y)}" width="${at(width)}" height="${at(height)}"/>`,
    text: (x, y, words, look = "middle") =>
      `<text class="${look}" x="${at(x)}" y="${at(y)}">${words}</text>`,
    bar: (x, width, from, to, look) =>
      pen.box(x - width / 2, Math.min(from, to), width, Math.abs(to - from), look),
  };

  const scene = (figure, state) => figure.draw(state, figure.numbers(state), pen);
  const words = (figure, state) => figure.tell(state, figure.numbers(state), short);

  /** The whole picture as it begins, for pages without scripts and for print. */
  function still(figure) {
    const state = figure.initial();
    const dots = figure.handles(state).map((h) => pen.dot(h.x, h.y, 7, "handle"));
    return (
      `<svg viewBox="0 0 ${WIDTH} ${figure.height}" role="img" aria-label="${words(figure, state)}">` +
      `<g>${scene(figure, state)}</g><g>${dots.join("")}</g></svg>\n`
    );
  }

  const limited = (value, { min, max, step }) =>
    Math.min(max, Math.max(min, step * Math.round(value / step)));

  function start(place, figure) {
    const svg = place.querySelector("svg");
    const [drawing, holder] = svg.children;
    let state = figure.initial();
    const status = document.createElement("p");
    status.className = "living-words";
    status.setAttribute("role", "status");
    const panel = document.createElement("div");
    panel.className = "living-controls";
    svg.setAttribute("role", "group");
    let dots = [];
    let timer;

    function draw() {
      drawing.innerHTML = scene(figure, state);
      const handles = figure.handles(state);
      while (dots.length > handles.length) dots.pop().remove();
      while (dots.length < handles.length) dots.push(handle(dots.length));
      handles.forEach((h, k) => {
        const attributes = {
          transform: `translate(${at(h.x)} ${at(h.y)})`, "aria-label": h.label, "aria-valuenow": h.value, "aria-valuemin": h.min,
          "aria-valuemax": h.max, "aria-valuetext": short(h.value),
          "aria-orientation": h.is_vertical ? "vertical" : "horizontal",
        };
        for (const [name, value] of Object.entries(attributes)) dots[k].setAttribute(name, value);
      });
      for (const control of figure.controls) {
        const input = panel.querySelector(`[name=${control.name}]`);
        input.value = state[control.name];
        const shown = control.shown ? control.shown(state[control.name]) : state[control.name];
        input.setAttribute("aria-valuetext", shown);
        input.nextElementSibling.textContent = shown;
      }
      svg.setAttribute("aria-label", words(figure, state));
      clearTimeout(timer); // a screen reader hears where a movement ends
      timer = setTimeout(() => (status.textContent = words(figure, state)), 250);
    }

    function handle(k) {
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "g");
      dot.innerHTML = pen.dot(0, 0, 14, "reach") + pen.dot(0, 0, 7, "handle");
      dot.setAttribute("role", "slider");
      dot.setAttribute("tabindex", "0");
      const set = (value) => {
        const h = figure.handles(state)[k];
        state = h.set(limited(value, h));
        draw();
      };
      dot.addEventListener("pointerdown", (event) => {
        dot.setPointerCapture(event.pointerId);
        dot.focus();
        event.preventDefault();
      });
      dot.addEventListener("pointermove", (event) => {
        if (!dot.hasPointerCapture(event.pointerId)) return;
        const where = new DOMPoint(event.clientX, event.clientY).matrixTransform(
          svg.getScreenCTM().inverse(),
        );
        const h = figure.handles(state)[k];
        set(h.value + (h.is_vertical ? h.y - where.y : where.x - h.x) / h.unit);
      });
      dot.addEventListener("keydown", (event) => {
        const h = figure.handles(state)[k];
        const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
        const to = { Home: h.min, End: h.max };
        if (event.key in by) set(h.value + by[event.key] * h.step);
        else if (event.key in to) set(to[event.key]);
        else return;
        event.preventDefault();
      });
      holder.append(dot);
      return dot;
    }

    for (const control of figure.controls) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "range", name: control.name });
      for (const key of ["min", "max", "step"]) input[key] = control[key];
      input.addEventListener("input", () => {
        state = { ...state, [control.name]: Number(input.value) };
        draw();
      });
      label.append(control.label, " ", input, document.createElement("output"));
      panel.append(label);
    }
    const again = document.createElement("button");
    again.type = "button";
    again.textContent = "Begin again";
    again.addEventListener("click", () => {
      state = figure.initial();
      draw();
    });
    panel.append(again);
    holder.replaceChildren();
    svg.after(panel, status);
    place.classList.add("is-living");
    draw();
  }

  return {
    pen,
    still,
    words,
    add: (figure) => figures.set(figure.name, figure),
    startAll: () => {
      for (const place of document.querySelectorAll("[data-living]")) {
        const figure = figures.get(place.dataset.living);
        if (figure) start(place, figure);
      }
    },
  };
})();

if (typeof document === "undefined") module.exports = living;
else document.addEventListener("DOMContentLoaded", living.startAll);
