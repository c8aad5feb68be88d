// Groups the nodes of a large graph. Hundreds of cards would be unreadable, so each pipeline is folded into one card.

export const MANY = 60;

function neighbours(edges) {
  const byId = new Map();
  const connect = (a, b) => byId.set(a, (byId.get(a) ?? new Set()).add(b));
  for (const { from, to } of edges) {
    connect(from, to);
    connect(to, from);
  }
  return byId;
}

/** Return the connected parts of the graph, each as a list of node ids. */
export function pipelines(nodes, edges) {
  const next = neighbours(edges);
  const seen = new Set();
  const components = [];
  for (const { id } of nodes) {
    if (seen.has(id)) continue;
    const part = [];
    const open = [id];
    seen.add(id);
    while (open.length > 0) {
      const at = open.pop();
      part.push(at);
      for (const neighbour of next.get(at) ?? []) {
        if (!seen.has(neighbour)) {
          seen.add(neighbour);
          open.push(neighbour);
        }
      }
    }
    components.push(part);
  }
  return components;
}

const nameOf = (id) => id.slice(id.indexOf(":") + 1);
const prefixOf = (name) => name.split(/[-._/]/, 1)[0];

function byPrefix(ids) {
  const byName = new Map();
  for (const id of ids) {
    const prefix = prefixOf(nameOf(id));
    byName.set(prefix, [...(byName.get(prefix) ?? []), id]);
  }
  return byName;
}

/** Return the prefix of most names, or the name of the first node. */
function nameFor(ids, edges) {
  const counts = [...byPrefix(ids)].map(([word, some]) => [some.length, word]).sort(([a], [b]) => b - a);
  if (counts[0][0] * 2 > ids.length) return counts[0][1];
  const fed = new Set(edges.map((edge) => edge.to));
  return `${nameOf(ids.find((id) => !fed.has(id)) ?? ids[0])} …`;
}

/** Return one group for a pipeline. Split a large pipeline by name prefix. */
function splitPipeline(ids, edges) {
  const words = ids.length > MANY ? byPrefix(ids) : new Map();
  const isSplit = words.size > 1 && words.size <= MANY && ids.length / words.size >= 3;
  return isSplit ? [...words].map(([name, some]) => ({ name, ids: some })) : [{ name: nameFor(ids, edges), ids }];
}

/** Return the groups [{id, name, ids}]. A small graph has no groups. */
export function groupsOf({ nodes, edges }) {
  if (nodes.length <= MANY) return [];
  const groups = [];
  const words = byPrefix(nodes.map((node) => node.id));
  const parts = pipelines(nodes, edges);
  // Too many pipelines would need too many cards, so group by name prefix instead.
  if (parts.length > MANY && words.size < parts.length) for (const [name, ids] of words) groups.push({ name, ids });
  else for (const ids of parts) groups.push(...splitPipeline(ids, edges));
  const counts = new Map();
  return groups.map((group) => {
    const number = (counts.get(group.name) ?? 0) + 1;
    counts.set(group.name, number);
    return { id: `group:${group.name}${number > 1 ? `~${number}` : ""}`, name: number > 1 ? `${group.name} (${number})` : group.name, ids: group.ids };
  });
}

/** Return the graph to draw. Each folded group becomes one node, and parallel edges become one edge. */
export function foldGroups({ nodes, edges }, groups, open) {
  const groupOf = new Map();
  const groupNodes = [];
  for (const group of groups) {
    if (open.has(group.id) || group.ids.length < 2) continue;
    for (const id of group.ids) groupOf.set(id, group.id);
    groupNodes.push({ id: group.id, kind: "group", name: group.name, about: contents(group.ids), ids: group.ids });
  }
  const visibleEdges = new Map();
  for (const { from, to } of edges) {
    const [a, b] = [groupOf.get(from) ?? from, groupOf.get(to) ?? to];
    if (a !== b) visibleEdges.set(`${a}>${b}`, { from: a, to: b });
  }
  return { nodes: [...nodes.filter((node) => !groupOf.has(node.id)), ...groupNodes], edges: [...visibleEdges.values()] };
}

function contents(ids) {
  const counts = { topic: 0, flow: 0, view: 0 };
  for (const id of ids) counts[id.slice(0, id.indexOf(":"))] += 1;
  return Object.entries(counts).filter(([, n]) => n > 0).map(([kind, n]) => `${n} ${kind}${n === 1 ? "" : "s"}`).join(", ");
}

/** Return the nodes whose names contain the words, and their neighbours. */
export function filterNodes({ nodes, edges }, words) {
  const needle = words.trim().toLowerCase();
  if (needle === "") return { graph: { nodes, edges }, hits: null };
  const hits = new Set(nodes.filter((node) => node.kind !== "source" && node.name.toLowerCase().includes(needle)).map((node) => node.id));
  const shownIds = new Set(hits);
  for (const { from, to } of edges) {
    if (hits.has(from)) shownIds.add(to);
    if (hits.has(to)) shownIds.add(from);
  }
  return { graph: { nodes: nodes.filter((node) => shownIds.has(node.id)), edges: edges.filter((edge) => shownIds.has(edge.from) && shownIds.has(edge.to)) }, hits };
}

/** Remove the source nodes, and mark their topics with `fed: true`. */
export function withoutSources({ nodes, edges }) {
  const fed = new Set(edges.filter((edge) => edge.from.startsWith("source:")).map((edge) => edge.to));
  return {
    nodes: nodes.filter((node) => node.kind !== "source").map((node) => (fed.has(node.id) ? { ...node, fed: true } : node)),
    edges: edges.filter((edge) => !edge.from.startsWith("source:")),
  };
}
