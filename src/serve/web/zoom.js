// Zoom and pan of a drawing: buttons, Ctrl and the wheel, dragging, two fingers, and keys.
import {button, element} from "/web/view.js";

const MOST = 64;

// size(): width and height of the whole drawing; draw(view): shows it with scale k, moved by x and y (pixels). One axis: only across.
export function zoomable(svg, label, size, draw, oneAxis = false) {
  const view = {k: 1, x: 0, y: 0}, fingers = new Map();
  let least = 0.1, fitted = false;
  const box = () => svg.getBoundingClientRect();
  function show() {
    const {width, height} = box(), whole = size();
    const within = (at, room, length) => (length <= room ? Math.max(0, Math.min(at, room - length)) : Math.min(0, Math.max(at, room - length)));
    view.x = within(view.x, width, whole.width * view.k);
    view.y = oneAxis ? 0 : within(view.y, height, whole.height * view.k);
    draw(view);
  }
  function zoom(factor, px = box().width / 2, py = box().height / 2) {
    const k = Math.max(least, Math.min(MOST * least, view.k * factor)), f = k / view.k;
    Object.assign(view, {k, x: px - (px - view.x) * f, y: py - (py - view.y) * f});
    show();
  }
  function fit() {
    const {width, height} = box(), whole = size();
    if (!width) return;
    fitted = true;
    least = oneAxis ? width / whole.width : Math.min(width / whole.width, height / whole.height, 1);
    Object.assign(view, {k: least, x: (width - whole.width * least) / 2, y: oneAxis ? 0 : (height - whole.height * least) / 2});
    show();
  }
  function center(x, y, k = view.k) {
    const {width, height} = box();
    Object.assign(view, {k: Math.max(least, k)});
    Object.assign(view, {x: width / 2 - x * view.k, y: height / 2 - y * view.k});
    show();
  }
  const move = (dx, dy) => { view.x += dx; view.y += dy; show(); };

  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;  // the page scrolls
    event.preventDefault();
    if (event.shiftKey) return move(-(event.deltaX || event.deltaY), 0);
    const {left, top} = box();
    zoom(Math.exp(-event.deltaY / 200), event.clientX - left, event.clientY - top);
  }, {passive: false});
  svg.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, {x: event.clientX, y: event.clientY});
    svg.classList.add("moving");
  });
  svg.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = {x: event.clientX, y: event.clientY}, other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    fingers.set(event.pointerId, now);
    if (!other) {
      if (Math.abs(now.x - before.x) + Math.abs(now.y - before.y) > 1) svg.setPointerCapture(event.pointerId);
      return move(now.x - before.x, now.y - before.y);
    }
    const apart = (p) => Math.hypot(p.x - other.x, p.y - other.y) || 1, {left, top} = box();
    zoom(apart(now) / apart(before), (now.x + other.x) / 2 - left, (now.y + other.y) / 2 - top);
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"])
    svg.addEventListener(name, (event) => {
      if (name === "pointerleave" && svg.hasPointerCapture(event.pointerId)) return;
      fingers.delete(event.pointerId);
      if (!fingers.size) svg.classList.remove("moving");
    });
  const keys = {"+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit,
                ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60)};
  svg.addEventListener("keydown", (event) => {
    if (event.target !== svg || event.ctrlKey || event.altKey || event.metaKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  svg.setAttribute("tabindex", "0");
  svg.classList.add("zoomable");
  new ResizeObserver(() => (!fitted || view.k === least ? fit() : show())).observe(svg);
  const tool = (text, name, run) => button(text, run, {ariaLabel: `${name}: ${label}`, title: name});
  const buttons = element("span", {className: "zoom"}, tool("−", "Zoom out", () => zoom(1 / 1.4)), tool("+", "Zoom in", () => zoom(1.4)), tool("Fit", "Show all", fit));
  return {buttons, fit, center};
}
