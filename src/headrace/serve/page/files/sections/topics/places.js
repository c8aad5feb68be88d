// Where a search begins and ends, as it is typed: an offset, a moment, or how long ago.

const UNITS_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

/** null for nothing, undefined for what cannot be read. */
export function edgeOf(text, now_ms = Date.now()) {
  const given = (text ?? "").trim().replace(/^@/, "");
  if (given === "") return null;
  if (/^\d{1,12}$/.test(given)) return { offset: Number(given) };
  if (/^\d{13}$/.test(given)) return { time_ms: Number(given) };
  if (/^-(\d+(\.\d+)?(ms|[smhdw]))+$/.test(given)) {
    const parts = [...given.matchAll(/(\d+(?:\.\d+)?)(ms|[smhdw])/g)];
    return { time_ms: Math.max(0, Math.round(now_ms - parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNITS_MS[unit], 0))) };
  }
  const at = Date.parse(given);
  return /^\d{4}-\d{2}-\d{2}/.test(given) && at >= 0 ? { time_ms: at } : undefined;
}
