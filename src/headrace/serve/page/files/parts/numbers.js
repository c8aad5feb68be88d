// Formats numbers for people: three digits and a unit, or a dash for an unknown value.

const NONE = "–";
const isKnown = (n) => n !== null && n !== undefined && !Number.isNaN(Number(n));

function short(n, step, units) {
  let value = Math.abs(Number(n));
  let at = 0;
  // The factor 0.9995 ensures that rounding never results in 1000 of the smaller unit.
  while (value >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  const digits = at === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const text = at === 0 && !Number.isInteger(value) ? String(Number(value.toPrecision(3))) : value.toFixed(digits).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
  return [`${Number(n) < 0 ? "-" : ""}${text}`, units[at]];
}

/** 1234567 → "1.23 M" */
export function count(n) {
  if (!isKnown(n)) return NONE;
  if (Math.abs(Number(n)) < 10_000 && Number.isInteger(Number(n))) return Number(n).toLocaleString("en");
  return short(n, 1000, ["", "k", "M", "G", "T", "P"]).join(" ").trim();
}

/** 1234567 → "1,234,567" */
export const exactly = (n) => (isKnown(n) ? BigInt(Math.trunc(Number(n))).toString().replace(/\B(?=(\d{3})+$)/g, ",") : NONE);

/** 1234 → "1.23 k/s" */
export function rate(n) {
  if (!isKnown(n)) return NONE;
  const value = Number(n);
  if (value !== 0 && Math.abs(value) < 0.095) return "< 0.1/s";
  const [text, unit] = short(Math.abs(value) < 10 ? Math.round(value * 10) / 10 : Math.abs(value) < 1000 ? Math.round(value) : value, 1000, ["", "k", "M", "G"]);
  return `${text}${unit ? ` ${unit}` : ""}/s`;
}

/** 1536 → "1.5 KiB" */
export const bytes = (n) => (isKnown(n) ? short(Math.round(Number(n)), 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]).join(" ") : NONE);

const SPANS = [
  [86_400, "d", 3_600, "h"],
  [3_600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

/** Seconds → "250 ms", "1.5 s", "2 min 5 s", "3 d 4 h" */
export function duration(s) {
  if (!isKnown(s)) return NONE;
  const value = Math.abs(Number(s));
  const sign = Number(s) < 0 ? "-" : "";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${sign}${Number((value * 1000).toPrecision(2))} ms`;
  if (value < 0.9995) return `${sign}${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${sign}${Number(value.toFixed(1))} s`;
  if (value < 59.5) return `${sign}${Math.round(value)} s`;
  for (const [size, unit, small, smallUnit] of SPANS) {
    if (value < size && size > 60) continue;
    const whole = Math.round(value / small);
    const per = size / small;
    const rest = whole % per;
    return `${sign}${Math.floor(whole / per)} ${unit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
  }
  return `${sign}${Math.round(value)} s`;
}

/** Milliseconds since the epoch → "5 s ago", "in 2 min". */
export function ago(ms, now_ms = Date.now()) {
  if (!isKnown(ms)) return NONE;
  const s = (now_ms - Number(ms)) / 1000;
  if (Math.abs(s) < 1) return "now";
  const words = duration(Math.abs(s) < 60 ? Math.round(Math.abs(s)) : Math.abs(s)).split(" ").slice(0, 2).join(" ");
  return s >= 0 ? `${words} ago` : `in ${words}`;
}

const pad = (n, width = 2) => String(n).padStart(width, "0");

/** Milliseconds since the epoch → "14:03:27" in local time, with the date if it is not today. */
export function time(ms, now_ms = Date.now()) {
  if (!isKnown(ms)) return NONE;
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime())) return NONE;
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const today = new Date(now_ms).toDateString() === at.toDateString();
  return today ? clock : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock}`;
}
