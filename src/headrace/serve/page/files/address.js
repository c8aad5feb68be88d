// The address within the page. The URL's hash contains the section, the path in the section, and the query.

export function parse(hash) {
  const [pathText, queryText = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [section = "", ...path] = pathText.split("/").filter(Boolean).map(decodePart);
  return { section, path, query: Object.fromEntries(new URLSearchParams(queryText)) };
}

function decodePart(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function address(section, path = [], query = {}) {
  const pathText = [section, ...path].map((part) => encodeURIComponent(part)).join("/");
  const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const queryText = new URLSearchParams(entries.map(([name, value]) => [name, String(value)])).toString();
  return `#/${pathText}${queryText ? `?${queryText}` : ""}`;
}

/** Go to an address. With `replace`, the browser history gets no new entry; use it for intermediate steps such as typing. */
export function go(section, path = [], query = {}, { replace = false } = {}) {
  const hash = address(section, path, query);
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}

/** Return the link for a path: an array of parts from the server, such as ["topics", "orders"], or a text. Otherwise return "". */
export function linkTo(path) {
  if (Array.isArray(path)) return path.length > 0 ? address(path[0], path.slice(1)) : "";
  return typeof path === "string" && path !== "" ? `#/${path.replace(/^#?\/?/, "")}` : "";
}
