// An answer as a picture: one column over another, as a line or as bars.

import { html, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { count } from "/page/parts/numbers.js";
import { textOf } from "../views/values.js";
import { isNumberType, isTimeType, momentOf } from "./names.js";

const POINTS_MAX = 20_000;
const BARS_MAX = 300;
const HEIGHT = 300;
const LABEL_CHARS_MAX = 100;
const DAY_S = 86_400;

const kindOf = (type) => (isTimeType(type) ? "time" : isNumberType(type) ? "number" : "text");

/** Which columns to draw, where nobody has chosen: a number over a time, a name, or another number. */
export function usual(columns) {
  const at = (kind, but = -1) => columns.findIndex((one, place) => kindOf(one.type) === kind && place !== but);
  const x = [at("time"), at("text")].find((one) => one >= 0) ?? (columns.length > 1 ? at("number") : -1);
  const numbers = columns.map((_, place) => place).filter((place) => kindOf(columns[place].type) === "number" && place !== x);
  return numbers.length ? { x, y: numbers[0] } : null;
}

const numberOf = (value) => (value === null || value === undefined || value === "" ? null : Number.isFinite(Number(value)) ? Number(value) : null);

/** What uPlot takes; x of a text is its place in the answer. */
function points({ columns, rows }, x, y, most) {
  const kind = x < 0 ? "place" : kindOf(columns[x].type);
  let pairs = rows.map((row, place) => {
    const at = kind === "time" ? momentOf(row[x]) / 1_000 : kind === "number" ? Number(row[x] ?? NaN) : place;
    return [at, numberOf(row[y]), x < 0 ? String(place + 1) : textOf(row[x])];
  });
  pairs = pairs.filter(([at]) => Number.isFinite(at));
  if (kind === "time" || kind === "number") pairs.sort((a, b) => a[0] - b[0]);
  const left = Math.max(0, pairs.length - most);
  pairs = pairs.slice(0, most);
  return { kind, left, labels: pairs.map((one) => one[2]), data: [pairs.map((one) => one[0]), pairs.map((one) => one[1])] };
}

export function Plot({ answer }) {
  const found = useMemo(() => usual(answer.columns), [answer]);
  const [made, setChosen] = useState({});
  // What was chosen of another answer may not be in this one.
  const chosen = made.answer === answer ? made : {};
  if (!found) return html`<p class="sql-note" data-test="no-chart">There is nothing to draw: no column has numbers beside another column.</p>`;
  const x = chosen.x ?? found.x;
  const y = chosen.y ?? found.y;
  const form = chosen.form ?? (x >= 0 && kindOf(answer.columns[x].type) !== "text" ? "line" : "bars");
  const choose = (name, make = Number) => (event) => setChosen({ ...chosen, answer, [name]: make(event.target.value) });
  const numbers = answer.columns.map((one, place) => [one, place]).filter(([one]) => kindOf(one.type) === "number");
  return html`
    <div class="sql-plot">
      <div class="sql-plot-choice">
        <label>Across <select value=${x} onChange=${choose("x")} data-test="chart-x">
          <option value="-1">row number</option>
          ${answer.columns.map((one, place) => html`<option key=${place} value=${place}>${one.name}</option>`)}
        </select></label>
        <label>Up <select value=${y} onChange=${choose("y")} data-test="chart-y">
          ${numbers.map(([one, place]) => html`<option key=${place} value=${place}>${one.name}</option>`)}
        </select></label>
        <label>As <select value=${form} onChange=${choose("form", String)} data-test="chart-form"><option value="line">line</option><option value="bars">bars</option></select></label>
      </div>
      <${Drawing} key=${`${x}/${y}/${form}`} answer=${answer} x=${x} y=${y} form=${form} />
    </div>`;
}

function Drawing({ answer, x, y, form }) {
  const box = useRef(null);
  const [pointed, setPointed] = useState(null);
  const [failed, setFailed] = useState(false);
  const told = useMemo(() => points(answer, x, y, form === "bars" ? BARS_MAX : POINTS_MAX), [answer]);
  const name = answer.columns[y].name;
  useEffect(() => {
    let plot = null;
    let redraw = () => {};
    import("/page/vendor/uplot.js").then(({ default: Plot }) => {
      if (redraw === null) return;
      redraw = () => {
        // What was removed is told of it a moment later.
        if (!box.current) return;
        plot?.destroy();
        plot = new Plot(options(Plot, told, form, name, box.current.clientWidth, setPointed), told.data, box.current);
      };
      redraw();
    }, () => redraw && setFailed(true));
    const changed = () => redraw();
    addEventListener("headrace-theme", changed);
    const watch = new ResizeObserver(([one]) => plot?.setSize({ width: Math.floor(one.contentRect.width), height: HEIGHT }));
    watch.observe(box.current);
    return () => {
      redraw = null;
      removeEventListener("headrace-theme", changed);
      watch.disconnect();
      plot?.destroy();
    };
  }, [told, form]);
  const across = x < 0 ? "row number" : answer.columns[x].name;
  const at = pointed !== null && pointed < told.labels.length ? pointed : null;
  return html`
    <figure class="chart" data-test="chart" data-points=${told.data[0].length}>
      <figcaption>
        <span class="chart-title">${name} over ${across}</span>
        <span class="chart-key">${at === null ? "" : html`${told.labels[at].slice(0, LABEL_CHARS_MAX)}: <b>${told.data[1][at] ?? "null"}</b>`}</span>
      </figcaption>
      <div class="chart-box sql-plot-box" ref=${box} role="img" aria-label=${`${name} over ${across}, ${told.data[0].length} points`}></div>
      ${failed ? html`<p class="sql-note">The chart could not be loaded: load the page again.</p>` : ""}
      ${told.left ? html`<p class="sql-note">The first ${count(told.data[0].length)} are drawn; ${count(told.left)} more are in the table.</p>` : ""}
    </figure>`;
}

function options(Plot, told, form, name, width, onPoint) {
  const style = getComputedStyle(document.documentElement);
  const colour = (one) => style.getPropertyValue(one).trim();
  const axis = { stroke: colour("--ink-2"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--sans") || "sans-serif"}` };
  const named = told.kind === "text" || told.kind === "place";
  const last = told.data[0].length - 1;
  const label = (at) => (Number.isInteger(at) && told.labels[at] !== undefined ? short(told.labels[at]) : "");
  const across = named
    ? { ...axis, space: 60, size: 30, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000], values: (_, ticks) => ticks.map(label) }
    : { ...axis, space: 80, size: 30, values: told.kind === "time" ? (_, ticks, __, ___, step) => ticks.map((s) => stamp(s, step)) : (_, ticks) => ticks.map(count) };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    // As the rows have them.
    tzDate: (s) => Plot.tzDate(new Date(s * 1_000), "Etc/UTC"),
    cursor: { y: false, points: { size: 6 } },
    hooks: { setCursor: [(self) => onPoint(self.cursor.idx ?? null)] },
    scales: {
      x: { time: told.kind === "time", ...(named ? { range: [-0.6, last + 0.6] } : {}) },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(0, high ?? 0) * 1.08 || (low < 0 ? 0 : 1)] },
    },
    axes: [across, { ...axis, size: 64, space: 30, values: (_, ticks) => ticks.map(count) }],
    series: [
      {},
      {
        label: name,
        stroke: colour("--chart-1"),
        fill: form === "bars" ? colour("--chart-1") : `${colour("--chart-1")}22`,
        width: form === "bars" ? 0 : 1.5,
        points: { show: form === "line" && told.data[0].length < 60 },
        ...(form === "bars" ? { paths: Plot.paths.bars({ size: [0.7, 60] }) } : {}),
      },
    ],
  };
}

/** The part of a moment that differs between two marks of an axis. */
function stamp(s, step) {
  const text = new Date(s * 1_000).toISOString();
  return step >= DAY_S ? text.slice(0, 10) : step >= 60 ? (s % DAY_S === 0 ? text.slice(5, 10) : text.slice(11, 16)) : text.slice(11, 19);
}

const short = (text) => (text.length > 14 ? `${text.slice(0, 13)}…` : text);
