// An SVG that pans and zooms by mouse, touch, wheel and keys. It changes only one transform attribute.

import { html, useEffect, useImperativeHandle, useLayoutEffect, useRef } from "/page/vendor/ui.js";

const SCALE_MIN = 0.08;
const SCALE_MAX = 2;
const READABLE = 0.6;
const FAR = 0.5;

const clamp = (value, minimum, maximum) => Math.max(minimum, Math.min(maximum, value));

/**
 * `hold`: a ref that is set to {fit, zoom, show(box)}. `size`: the size of the drawing. `boxes`: the cards of the overview map.
 * `first`: the box to show at the start, and again whenever `first` changes.
 */
export function Canvas({ size, boxes, hold, label, first, children, onBackground }) {
  const svg = useRef(null);
  const stage = useRef(null);
  const map = useRef(null);
  const frame = useRef(null);
  const at = useRef({ x: 0, y: 0, k: 1 });
  const drawn = useRef(size);
  drawn.current = size;
  const fingers = useRef(new Map());
  const dragDistance = useRef(0);

  const viewportSize = () => {
    const { clientWidth: width, clientHeight: height } = svg.current;
    return { width: width || 1, height: height || 1 };
  };
  const fitScale = () => {
    const { width, height } = viewportSize();
    return Math.min(width / drawn.current.width, height / drawn.current.height, 1.1);
  };
  const apply = () => {
    // The resize observer can call this function once more after unmounting.
    if (!stage.current) return;
    const { x, y, k } = at.current;
    stage.current.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${k.toFixed(4)})`);
    svg.current.classList.toggle("far", k < FAR);
    map.current.classList.toggle("needed", k > fitScale() * 1.15);
    const { width, height } = viewportSize();
    for (const [name, value] of Object.entries({ x: -x / k, y: -y / k, width: width / k, height: height / k })) frame.current.setAttribute(name, value.toFixed(0));
  };
  const zoomAt = (factor, px, py) => {
    const { x, y, k } = at.current;
    const to = clamp(k * factor, SCALE_MIN, SCALE_MAX);
    at.current = { k: to, x: px - ((px - x) / k) * to, y: py - ((py - y) / k) * to };
    apply();
  };
  const fit = (minimum = 0) => {
    const { width, height } = viewportSize();
    const k = clamp(Math.max(fitScale(), minimum), SCALE_MIN, SCALE_MAX);
    // If the drawing does not fit, show its top left corner.
    at.current = { k, x: Math.max((width - size.width * k) / 2, 0), y: Math.max((height - size.height * k) / 2, 0) };
    apply();
  };
  /** Move as little as needed to make a box visible. */
  const show = (box, centred = false) => {
    const { width, height } = viewportSize();
    const { k } = at.current;
    let { x, y } = at.current;
    const margin = 24;
    if (centred) {
      x = width / 2 - (box.x + box.width / 2) * k;
      y = height / 2 - (box.y + box.height / 2) * k;
    } else {
      x = clamp(x, margin - box.x * k, Math.max(margin - box.x * k, width - margin - (box.x + box.width) * k));
      y = clamp(y, margin - box.y * k, Math.max(margin - box.y * k, height - margin - (box.y + box.height) * k));
    }
    at.current = { k, x, y };
    apply();
  };
  const zoom = (factor) => {
    const { width, height } = viewportSize();
    zoomAt(factor, width / 2, height / 2);
  };
  useImperativeHandle(hold, () => ({ fit: () => fit(), zoom, show }), [size]);
  useLayoutEffect(() => fit(READABLE), [size]);
  useLayoutEffect(() => first && show(first), [size, first]);

  useEffect(() => {
    const box = svg.current;
    const pointIn = (event) => {
      const { left, top } = box.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    const wheeled = (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) zoomAt(Math.exp(-event.deltaY * 0.01), ...pointIn(event));
      else {
        const unit = event.deltaMode === 1 ? 16 : 1;
        const sideways = event.shiftKey && event.deltaX === 0;
        at.current = { ...at.current, x: at.current.x - (sideways ? event.deltaY : event.deltaX) * unit, y: at.current.y - (sideways ? 0 : event.deltaY) * unit };
        apply();
      }
    };
    // Without passive: false, the browser would also scroll the page.
    box.addEventListener("wheel", wheeled, { passive: false });
    const watch = new ResizeObserver(apply);
    watch.observe(box);
    return () => {
      box.removeEventListener("wheel", wheeled);
      watch.disconnect();
    };
  }, []);

  const down = (event) => {
    if (event.button !== 0) return;
    fingers.current.set(event.pointerId, [event.clientX, event.clientY]);
    dragDistance.current = 0;
  };
  const move = (event) => {
    const before = fingers.current.get(event.pointerId);
    if (!before) return;
    const point = [event.clientX, event.clientY];
    const all = [...fingers.current.values()];
    fingers.current.set(event.pointerId, point);
    const [dx, dy] = [point[0] - before[0], point[1] - before[1]];
    dragDistance.current += Math.abs(dx) + Math.abs(dy);
    if (dragDistance.current > 4 && !svg.current.hasPointerCapture(event.pointerId)) svg.current.setPointerCapture(event.pointerId);
    if (all.length === 2) {
      const other = all.find((position) => position !== before);
      const distanceTo = (from) => Math.hypot(from[0] - other[0], from[1] - other[1]) || 1;
      const { left, top } = svg.current.getBoundingClientRect();
      zoomAt(distanceTo(point) / distanceTo(before), (point[0] + other[0]) / 2 - left, (point[1] + other[1]) / 2 - top);
    } else {
      at.current = { ...at.current, x: at.current.x + dx, y: at.current.y + dy };
      apply();
    }
  };
  const up = (event) => fingers.current.delete(event.pointerId);
  // Ignore the click that ends a drag.
  const clicked = (event) => {
    // A click by the keyboard has detail 0.
    if (event.detail !== 0 && dragDistance.current > 4) {
      event.preventDefault();
      event.stopPropagation();
    } else if (!event.target.closest("a")) onBackground?.();
  };
  const pressed = (event) => {
    const steps = { "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => fit() };
    if (!event.ctrlKey && !event.metaKey && steps[event.key]) {
      event.preventDefault();
      steps[event.key]();
    }
  };

  const jumped = (event) => {
    if (event.buttons !== 1) return;
    const { left, top, width, height } = map.current.getBoundingClientRect();
    const k = Math.max(size.width / width, size.height / height);
    const [x, y] = [(event.clientX - left - width / 2) * k + size.width / 2, (event.clientY - top - height / 2) * k + size.height / 2];
    show({ x, y, width: 0, height: 0 }, true);
  };

  return html`<svg ref=${svg} class="graph-canvas" role="group" aria-label=${label} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up} onClickCapture=${clicked} onKeyDown=${pressed} onDragStart=${(event) => event.preventDefault()} data-test="graph-canvas">
      <defs><marker id="graph-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 .5L7 4L0 7.5z" class="graph-arrow" /></marker></defs>
      <g ref=${stage}>${children}</g>
    </svg>
    <svg ref=${map} class="graph-map" viewBox=${`0 0 ${size.width} ${size.height}`} aria-hidden="true" onPointerDown=${jumped} onPointerMove=${jumped}>
      ${boxes.map((box) => html`<rect key=${box.id} class=${box.tone} x=${box.x} y=${box.y} width=${box.width} height=${box.height} />`)}
      <rect ref=${frame} class="graph-frame" />
    </svg>`;
}
