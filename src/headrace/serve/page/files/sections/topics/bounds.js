// Parses the start or end of a search: an offset, a time, or a duration before now.

const UNITS_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

/** Return null for an empty text, and undefined for an invalid text. */
export function parseBound(text, now_ms = Date.now()) {
  const trimmed = (text ?? "").trim().replace(/^@/, "");
  if (trimmed === "") return null;
  if (/^\d{1,12}$/.test(trimmed)) return { offset: Number(trimmed) };
  if (/^\d{13}$/.test(trimmed)) return { time_ms: Number(trimmed) };
  if (/^-(\d+(\.\d+)?(ms|[smhdw]))+$/.test(trimmed)) {
    const parts = [...trimmed.matchAll(/(\d+(?:\.\d+)?)(ms|[smhdw])/g)];
    return { time_ms: Math.max(0, Math.round(now_ms - parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNITS_MS[unit], 0))) };
  }
  const at = Date.parse(trimmed);
  return /^\d{4}-\d{2}-\d{2}/.test(trimmed) && at >= 0 ? { time_ms: at } : undefined;
}
