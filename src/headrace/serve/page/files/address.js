// Where one is on the page: the hash holds the section, the path behind it, and what was asked for.

export function parse(hash) {
  const [place, asked = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [section = "", ...path] = place.split("/").filter(Boolean).map(decoded);
  return { section, path, query: Object.fromEntries(new URLSearchParams(asked)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function address(section, path = [], query = {}) {
  const place = [section, ...path].map((one) => encodeURIComponent(one)).join("/");
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const asked = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${place}${asked ? `?${asked}` : ""}`;
}

/** `replace` keeps the way back free of what was only typed or clicked through. */
export function go(section, path = [], query = {}, { replace = false } = {}) {
  const hash = address(section, path, query);
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}

/** The server names places by their parts: ["topics", "orders"]. A path as text will do too; nothing else is a link. */
export function linkTo(path) {
  if (Array.isArray(path)) return path.length > 0 ? address(path[0], path.slice(1)) : "";
  return typeof path === "string" && path !== "" ? `#/${path.replace(/^#?\/?/, "")}` : "";
}
