// Filters that were saved, by topic, in this browser.

import { kept } from "/page/stored.js";

const KEPT = "headrace.filters";
const KEPT_MAX = 50;

function all() {
  try {
    const found = JSON.parse(kept.get(KEPT) ?? "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

export function filtersOf(topic) {
  const found = all()[topic];
  return Array.isArray(found) ? found.filter((one) => typeof one?.name === "string" && typeof one?.where === "string") : [];
}

/** One of the same name is replaced; with an empty `where` it is forgotten. */
export function saveFilter(topic, name, where) {
  const others = filtersOf(topic).filter((one) => one.name !== name);
  const made = where ? [...others, { name, where }].slice(-KEPT_MAX) : others;
  kept.set(KEPT, JSON.stringify({ ...all(), [topic]: made }));
  return made;
}
