// The last statements that were run in this browser, without duplicates.

const KEY = "headrace.sql.history";
const ENTRIES_MAX = 50;
export const STATEMENT_CHARS_MAX = 10_000;

export function history() {
  try {
    const entries = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    const fits = (entry) => typeof entry?.sql === "string" && typeof entry.at_ms === "number";
    return Array.isArray(entries) ? entries.filter(fits).slice(0, ENTRIES_MAX) : [];
  } catch {
    return []; // Storage can be forbidden, or contain data of another program.
  }
}

/** Add a statement. Return the new history. */
export function remember(sql, at_ms = Date.now()) {
  if (sql.length > STATEMENT_CHARS_MAX) return history();
  const entries = [{ sql, at_ms }, ...history().filter((entry) => entry.sql !== sql)].slice(0, ENTRIES_MAX);
  store(entries);
  return entries;
}

export function forget() {
  store([]);
  return [];
}

function store(entries) {
  try {
    localStorage.setItem(KEY, JSON.stringify(entries));
  } catch {
    // Storage is full or forbidden; the history is optional.
  }
}
