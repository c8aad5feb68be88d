// Statements that were asked before, in this browser: the last ones, each once.

const KEY = "headrace.sql.history";
const ENTRIES_MAX = 50;
export const STATEMENT_CHARS_MAX = 10_000;

export function history() {
  try {
    const told = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    const fits = (one) => typeof one?.sql === "string" && typeof one.at_ms === "number";
    return Array.isArray(told) ? told.filter(fits).slice(0, ENTRIES_MAX) : [];
  } catch {
    return []; // Storage may be forbidden, or have what nobody here wrote.
  }
}

/** What the history is with this one in it. */
export function remember(sql, at_ms = Date.now()) {
  if (sql.length > STATEMENT_CHARS_MAX) return history();
  const kept = [{ sql, at_ms }, ...history().filter((one) => one.sql !== sql)].slice(0, ENTRIES_MAX);
  store(kept);
  return kept;
}

export function forget() {
  store([]);
  return [];
}

function store(kept) {
  try {
    localStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // Full, or forbidden: a history is no reason to fail.
  }
}
