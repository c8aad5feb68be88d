// Which parts of a large graph are drawn one by one, and which as groups: nobody reads three hundred cards at once.

export const MANY = 60;

function neighbours(edges) {
  const found = new Map();
  const note = (a, b) => found.set(a, (found.get(a) ?? new Set()).add(b));
  for (const { from, to } of edges) {
    note(from, to);
    note(to, from);
  }
  return found;
}

/** Parts that hang together, each as a list of ids. */
export function pipelines(nodes, edges) {
  const next = neighbours(edges);
  const seen = new Set();
  const found = [];
  for (const { id } of nodes) {
    if (seen.has(id)) continue;
    const part = [];
    const open = [id];
    seen.add(id);
    while (open.length > 0) {
      const at = open.pop();
      part.push(at);
      for (const one of next.get(at) ?? []) {
        if (!seen.has(one)) {
          seen.add(one);
          open.push(one);
        }
      }
    }
    found.push(part);
  }
  return found;
}

const nameOf = (id) => id.slice(id.indexOf(":") + 1);
const prefixOf = (name) => name.split(/[-._/]/, 1)[0];

function byPrefix(ids) {
  const found = new Map();
  for (const id of ids) {
    const prefix = prefixOf(nameOf(id));
    found.set(prefix, [...(found.get(prefix) ?? []), id]);
  }
  return found;
}

/** The word that most names begin with, or the name of what is first in it. */
function nameFor(ids, edges) {
  const counts = [...byPrefix(ids)].map(([word, some]) => [some.length, word]).sort(([a], [b]) => b - a);
  if (counts[0][0] * 2 > ids.length) return counts[0][1];
  const fed = new Set(edges.map((one) => one.to));
  return `${nameOf(ids.find((id) => !fed.has(id)) ?? ids[0])} …`;
}

/** A pipeline is one group, or several by the words that names in it begin with if it is large. */
function grouped(ids, edges) {
  const words = ids.length > MANY ? byPrefix(ids) : new Map();
  const fit = words.size > 1 && words.size <= MANY && ids.length / words.size >= 3;
  return fit ? [...words].map(([name, some]) => ({ name, ids: some })) : [{ name: nameFor(ids, edges), ids }];
}

/** Groups: [{id, name, ids}]. Only for what is many. */
export function groupsOf({ nodes, edges }) {
  if (nodes.length <= MANY) return [];
  const groups = [];
  const words = byPrefix(nodes.map((one) => one.id));
  const parts = pipelines(nodes, edges);
  // As many pipelines are no fewer cards: then words that names begin with say more.
  if (parts.length > MANY && words.size < parts.length) for (const [name, ids] of words) groups.push({ name, ids });
  else for (const ids of parts) groups.push(...grouped(ids, edges));
  const counts = new Map();
  return groups.map((one) => {
    const turn = (counts.get(one.name) ?? 0) + 1;
    counts.set(one.name, turn);
    return { id: `group:${one.name}${turn > 1 ? `~${turn}` : ""}`, name: turn > 1 ? `${one.name} (${turn})` : one.name, ids: one.ids };
  });
}

/** The graph as drawn: groups that are not open are one node each, and edges between them one edge. */
export function folded({ nodes, edges }, groups, open) {
  const inside = new Map();
  const drawn = [];
  for (const group of groups) {
    if (open.has(group.id) || group.ids.length < 2) continue;
    for (const id of group.ids) inside.set(id, group.id);
    drawn.push({ id: group.id, kind: "group", name: group.name, about: contents(group.ids), ids: group.ids });
  }
  const shown = new Map();
  for (const { from, to } of edges) {
    const [a, b] = [inside.get(from) ?? from, inside.get(to) ?? to];
    if (a !== b) shown.set(`${a}>${b}`, { from: a, to: b });
  }
  return { nodes: [...nodes.filter((one) => !inside.has(one.id)), ...drawn], edges: [...shown.values()] };
}

function contents(ids) {
  const counts = { topic: 0, flow: 0, view: 0 };
  for (const id of ids) counts[id.slice(0, id.indexOf(":"))] += 1;
  return Object.entries(counts).filter(([, n]) => n > 0).map(([kind, n]) => `${n} ${kind}${n === 1 ? "" : "s"}`).join(", ");
}

/** What has the words in its name, and what is right beside it. */
export function around({ nodes, edges }, words) {
  const wanted = words.trim().toLowerCase();
  if (wanted === "") return { graph: { nodes, edges }, hits: null };
  const hits = new Set(nodes.filter((one) => one.kind !== "source" && one.name.toLowerCase().includes(wanted)).map((one) => one.id));
  const kept = new Set(hits);
  for (const { from, to } of edges) {
    if (hits.has(from)) kept.add(to);
    if (hits.has(to)) kept.add(from);
  }
  return { graph: { nodes: nodes.filter((one) => kept.has(one.id)), edges: edges.filter((one) => kept.has(one.from) && kept.has(one.to)) }, hits };
}

/** Where there are many, who writes from outside is told on the topic. */
export function withoutSources({ nodes, edges }) {
  const fed = new Set(edges.filter((one) => one.from.startsWith("source:")).map((one) => one.to));
  return {
    nodes: nodes.filter((one) => one.kind !== "source").map((one) => (fed.has(one.id) ? { ...one, fed: true } : one)),
    edges: edges.filter((one) => !one.from.startsWith("source:")),
  };
}
