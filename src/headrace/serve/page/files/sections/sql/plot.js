// Draws a chart of a result: one column over another, as a line or bars.

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

/** Return the columns to draw by default: a number over a time, a text, or another number. Return null if no column has numbers. */
export function defaultAxes(columns) {
  const at = (kind, but = -1) => columns.findIndex((column, index) => kindOf(column.type) === kind && index !== but);
  const x = [at("time"), at("text")].find((name) => name >= 0) ?? (columns.length > 1 ? at("number") : -1);
  const numbers = columns.map((_, index) => index).filter((index) => kindOf(columns[index].type) === "number" && index !== x);
  return numbers.length ? { x, y: numbers[0] } : null;
}

const numberOf = (value) => (value === null || value === undefined || value === "" ? null : Number.isFinite(Number(value)) ? Number(value) : null);

/** Return the data for uPlot. For a text column, the x value is the row index. */
function points({ columns, rows }, x, y, pointsMax) {
  const kind = x < 0 ? "index" : kindOf(columns[x].type);
  let pairs = rows.map((row, index) => {
    const at = kind === "time" ? momentOf(row[x]) / 1_000 : kind === "number" ? Number(row[x] ?? NaN) : index;
    return [at, numberOf(row[y]), x < 0 ? String(index + 1) : textOf(row[x])];
  });
  pairs = pairs.filter(([at]) => Number.isFinite(at));
  if (kind === "time" || kind === "number") pairs.sort((a, b) => a[0] - b[0]);
  const omitted = Math.max(0, pairs.length - pointsMax);
  pairs = pairs.slice(0, pointsMax);
  return { kind, omitted, labels: pairs.map((pair) => pair[2]), data: [pairs.map((pair) => pair[0]), pairs.map((pair) => pair[1])] };
}

export function Plot({ answer }) {
  const defaults = useMemo(() => defaultAxes(answer.columns), [answer]);
  const [choice, setChoice] = useState({});
  // A choice for an earlier result does not apply to this result.
  const chosen = choice.answer === answer ? choice : {};
  if (!defaults) return html`<p class="sql-note" data-test="no-chart">Nothing to draw: the result has no column of numbers.</p>`;
  const x = chosen.x ?? defaults.x;
  const y = chosen.y ?? defaults.y;
  const form = chosen.form ?? (x >= 0 && kindOf(answer.columns[x].type) !== "text" ? "line" : "bars");
  const choose = (name, make = Number) => (event) => setChoice({ ...chosen, answer, [name]: make(event.target.value) });
  const numbers = answer.columns.map((column, index) => [column, index]).filter(([column]) => kindOf(column.type) === "number");
  return html`
    <div class="sql-plot">
      <div class="sql-plot-choice">
        <label>X axis <select value=${x} onChange=${choose("x")} data-test="chart-x">
          <option value="-1">row number</option>
          ${answer.columns.map((column, index) => html`<option key=${index} value=${index}>${column.name}</option>`)}
        </select></label>
        <label>Y axis <select value=${y} onChange=${choose("y")} data-test="chart-y">
          ${numbers.map(([column, index]) => html`<option key=${index} value=${index}>${column.name}</option>`)}
        </select></label>
        <label>Type <select value=${form} onChange=${choose("form", String)} data-test="chart-form"><option value="line">line</option><option value="bars">bars</option></select></label>
      </div>
      <${Drawing} key=${`${x}/${y}/${form}`} answer=${answer} x=${x} y=${y} form=${form} />
    </div>`;
}

function Drawing({ answer, x, y, form }) {
  const box = useRef(null);
  const [pointed, setPointed] = useState(null);
  const [failed, setFailed] = useState(false);
  const plotted = useMemo(() => points(answer, x, y, form === "bars" ? BARS_MAX : POINTS_MAX), [answer]);
  const name = answer.columns[y].name;
  useEffect(() => {
    let plot = null;
    let redraw = () => {};
    import("/page/vendor/uplot.js").then(({ default: Plot }) => {
      if (redraw === null) return;
      redraw = () => {
        // The theme can change after unmounting.
        if (!box.current) return;
        plot?.destroy();
        plot = new Plot(options(Plot, plotted, form, name, box.current.clientWidth, setPointed), plotted.data, box.current);
      };
      redraw();
    }, () => redraw && setFailed(true));
    const changed = () => redraw();
    addEventListener("headrace-theme", changed);
    const watch = new ResizeObserver(([entry]) => plot?.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT }));
    watch.observe(box.current);
    return () => {
      redraw = null;
      removeEventListener("headrace-theme", changed);
      watch.disconnect();
      plot?.destroy();
    };
  }, [plotted, form]);
  const across = x < 0 ? "row number" : answer.columns[x].name;
  const at = pointed !== null && pointed < plotted.labels.length ? pointed : null;
  return html`
    <figure class="chart" data-test="chart" data-points=${plotted.data[0].length}>
      <figcaption>
        <span class="chart-title">${name} over ${across}</span>
        <span class="chart-key">${at === null ? "" : html`${plotted.labels[at].slice(0, LABEL_CHARS_MAX)}: <b>${plotted.data[1][at] ?? "null"}</b>`}</span>
      </figcaption>
      <div class="chart-box sql-plot-box" ref=${box} role="img" aria-label=${`${name} over ${across}, ${plotted.data[0].length} points`}></div>
      ${failed ? html`<p class="sql-note">The chart library did not load: reload the page.</p>` : ""}
      ${plotted.omitted ? html`<p class="sql-note">The chart shows the first ${count(plotted.data[0].length)} rows. The table has ${count(plotted.omitted)} more.</p>` : ""}
    </figure>`;
}

function options(Plot, plotted, form, name, width, onPoint) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--ink-2"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--sans") || "sans-serif"}` };
  const hasTextLabels = plotted.kind === "text" || plotted.kind === "index";
  const last = plotted.data[0].length - 1;
  const label = (at) => (Number.isInteger(at) && plotted.labels[at] !== undefined ? short(plotted.labels[at]) : "");
  const across = hasTextLabels
    ? { ...axis, space: 60, size: 30, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000], values: (_, ticks) => ticks.map(label) }
    : { ...axis, space: 80, size: 30, values: plotted.kind === "time" ? (_, ticks, __, ___, step) => ticks.map((s) => stamp(s, step)) : (_, ticks) => ticks.map(count) };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    // Times are in UTC, as in the rows.
    tzDate: (s) => Plot.tzDate(new Date(s * 1_000), "Etc/UTC"),
    cursor: { y: false, points: { size: 6 } },
    hooks: { setCursor: [(self) => onPoint(self.cursor.idx ?? null)] },
    scales: {
      x: { time: plotted.kind === "time", ...(hasTextLabels ? { range: [-0.6, last + 0.6] } : {}) },
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
        points: { show: form === "line" && plotted.data[0].length < 60 },
        ...(form === "bars" ? { paths: Plot.paths.bars({ size: [0.7, 60] }) } : {}),
      },
    ],
  };
}

/** Return the part of a time that differs between two ticks. */
function stamp(s, step) {
  const text = new Date(s * 1_000).toISOString();
  return step >= DAY_S ? text.slice(0, 10) : step >= 60 ? (s % DAY_S === 0 ? text.slice(5, 10) : text.slice(11, 16)) : text.slice(11, 19);
}

const short = (text) => (text.length > 14 ? `${text.slice(0, 13)}…` : text);
