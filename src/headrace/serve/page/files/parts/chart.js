// A chart of values over time, drawn by uPlot without animation, in the colours of the page.

import { html, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { bytes, count, duration, rate } from "/page/parts/numbers.js";

const COLOURS = ["--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5", "--chart-6"];

// Distances between the ticks of an axis, by unit.
const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const STEPS = { s: SECONDS, ms: SECONDS.map((step) => step * 1000), B: Array.from({ length: 50 }, (_, power) => 2 ** power) };

/** Return the formatter for a unit. An unknown unit is written after the number. */
function formatterOf(unit) {
  if (unit === "/s") return rate;
  if (unit === "B" || unit === "bytes") return bytes;
  if (unit === "s") return duration;
  if (unit === "ms") return (value) => (value === null || value === undefined ? "–" : duration(value / 1000));
  return (value) => `${count(value)}${unit && value !== null && value !== undefined ? ` ${unit}` : ""}`;
}

function joinSeries(series) {
  const times = [...new Set(series.flatMap((line) => line.points.map(([ms]) => ms)))].sort((a, b) => a - b);
  const columns = series.map((line) => {
    const known = new Map(line.points);
    return times.map((ms) => known.get(ms) ?? null);
  });
  return [times.map((ms) => ms / 1000), ...columns];
}

function options(series, width, height) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const write = formatterOf(series[0]?.unit);
  const axis = { stroke: colour("--ink-2"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${style.getPropertyValue("--sans")}` };
  return {
    width,
    height,
    padding: [6, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 4] } },
    axes: [
      { ...axis, space: 70, size: 26, values: (_, ticks) => ticks.map((s) => new Date(s * 1000).toTimeString().slice(0, 8)) },
      { ...axis, size: 62, space: 28, values: (_, ticks) => ticks.map(write), ...(STEPS[series[0]?.unit] ? { incrs: STEPS[series[0].unit] } : {}) },
    ],
    series: [
      {},
      ...series.map((line, at) => ({
        label: line.label,
        stroke: colour(COLOURS[at % COLOURS.length]),
        width: 1.5,
        fill: series.length === 1 ? `${colour(COLOURS[0])}22` : undefined,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

/** `series`: [{label, points: [[ms, value], …], unit}], all with the same unit. */
export function Chart({ series, height = 160, title = "" }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [Plot, setPlot] = useState(null);
  const [width, setWidth] = useState(0);
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const [pointedAt, setPointedAt] = useState(null);
  const seriesKey = series.map((line) => `${line.label}|${line.unit ?? ""}`).join("\n");
  const data = useMemo(() => joinSeries(series), [series]);
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    let mounted = true;
    import("/page/vendor/uplot.js").then((module) => mounted && setPlot(() => module.default));
    const changed = () => setTheme(document.documentElement.dataset.theme);
    addEventListener("headrace-theme", changed);
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => {
      mounted = false;
      removeEventListener("headrace-theme", changed);
      watch.disconnect();
    };
  }, []);
  useEffect(() => {
    if (!Plot || width === 0 || series.length === 0) return undefined;
    const settings = options(series, width, height);
    settings.hooks = { setCursor: [(self) => setPointedAt(self.cursor.idx ?? null)] };
    plot.current = new Plot(settings, latest.current, box.current);
    return () => {
      plot.current.destroy();
      plot.current = null;
    };
  }, [Plot, width === 0, height, theme, seriesKey]);
  useEffect(() => plot.current?.setSize({ width, height }), [width, height]);
  useEffect(() => plot.current?.setData(data), [data]);

  const at = pointedAt !== null && pointedAt < data[0].length ? pointedAt : data[0].length - 1;
  const values = series.map((line, index) => formatterOf(line.unit)(data[index + 1]?.[at] ?? null));
  const words = `${title}: ${series.map((line, index) => `${line.label} ${values[index]}`).join(", ")}`;
  return html`<figure class="chart">
    <figcaption><span class="chart-title">${title}</span>
      ${series.map((line, index) => html`<span key=${line.label} class="chart-key"><span class=${`chart-mark chart-mark-${(index % COLOURS.length) + 1}`} aria-hidden="true"></span>${line.label} <b>${values[index]}</b></span>`)}
    </figcaption>
    <div class="chart-box" ref=${box} role="img" aria-label=${words} style=${{ height: `${height}px` }}></div>
    ${data[0].length === 0 && html`<p class="chart-none quiet">Nothing measured yet.</p>`}
  </figure>`;
}
