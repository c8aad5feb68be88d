// Stores filters by topic, in this browser.

import { localStore } from "/page/storage.js";

const STORAGE_KEY = "headrace.filters";
const FILTERS_MAX = 50;

function all() {
  try {
    const parsed = JSON.parse(localStore.get(STORAGE_KEY) ?? "{}");
    return parsed && typeof parsed === "object" ? parsed : {};
  } catch {
    return {};
  }
}

export function filtersOf(topic) {
  const parsed = all()[topic];
  return Array.isArray(parsed) ? parsed.filter((entry) => typeof entry?.name === "string" && typeof entry?.where === "string") : [];
}

/** Save a filter, or replace the one with the same name. An empty `where` removes it. */
export function saveFilter(topic, name, where) {
  const others = filtersOf(topic).filter((filter) => filter.name !== name);
  const filters = where ? [...others, { name, where }].slice(-FILTERS_MAX) : others;
  localStore.set(STORAGE_KEY, JSON.stringify({ ...all(), [topic]: filters }));
  return filters;
}
