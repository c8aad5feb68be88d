// Texts about a node: a short one for its card, a complete one for screen readers.

import { bytes, count, duration, exactly, rate } from "/page/parts/numbers.js";

export const KINDS = { source: "Source", topic: "Topic", flow: "Flow", view: "View", group: "Group" };

const BEHIND_S = 5;

/** Return the last part of a dotted source name. */
export const shortName = (part) => (part.kind === "source" ? part.name.slice(part.name.lastIndexOf(".") + 1) : part.name);

/** Format the lag of a reader: as a time if it is at least one second, otherwise in records. */
function behind(lag) {
  if (!lag?.records) return "";
  const long = (lag.seconds ?? 0) >= 1;
  return `${long ? duration(lag.seconds).split(" ").slice(0, 2).join(" ") : count(lag.records)} behind`;
}

/** Return the colour of a node. A part that only suffers from a bottleneck has no colour. */
export function toneOf(node) {
  if (!node) return "";
  if (node.state === "failed" || node.state === "stopped" || node.differs) return "bad";
  if (node.cause) return "warn";
  return "";
}

/** Return the second line of a card. */
export function summary(kind, node) {
  if (!node) return "";
  if (kind === "source") return rate(node.per_s);
  if (kind === "topic") return node.state === "not there" ? "not created yet" : `${rate(node.per_s)} · ${count(node.records ?? node.end)}`;
  const usual = node.state === "running" || node.state === "following";
  const speed = kind === "flow" ? node.per_s_in : node.per_s;
  const state = usual ? "" : `${node.state}`;
  const work = node.state === "on read" || node.state === "failed" ? "" : rate(speed);
  return [state, work, lateness(node.lag)].filter(Boolean).join(" · ");
}

export function edgeRate(edge) {
  return edge && edge.per_s !== null && edge.per_s !== undefined ? rate(edge.per_s) : "";
}

export const lineLag = (lag) => lateness(lag).replace(/ behind$/, "");

/** Format the lag. Return an empty text below one second. */
export const lateness = (lag) => ((lag?.seconds ?? 1) >= 1 ? behind(lag) : "");

export const isFarBehind = (edge) => (edge?.lag?.seconds ?? 0) >= BEHIND_S && edge.lag.records > 0;

export function describe(part, node) {
  const parts = [`${KINDS[part.kind]} ${part.name}`];
  if (part.about) parts.push(part.about);
  if (!node) return parts.join(", ");
  if (node.state) parts.push(node.state);
  if (node.cause) parts.push("the bottleneck");
  return `${parts.join(", ")}. ${summary(part.kind, node)}`;
}

/** Return the facts for the panel as [name, value]. */
export function facts(kind, node) {
  if (!node) return [];
  const lag = node.lag?.records ? [`${exactly(node.lag.records)} records`, node.lag.bytes !== null && bytes(node.lag.bytes), node.lag.seconds !== null && `oldest ${duration(node.lag.seconds)}`].filter(Boolean).join(", ") : node.lag?.records === 0 ? "none" : "unknown";
  const rows = {
    source: [["Writes", rate(node.per_s)]],
    topic: [["Arriving", rate(node.per_s)], ["Records", exactly(node.records ?? node.end)], ["Size", bytes(node.bytes)], ["Name in the log", node.log]],
    flow: [["Reads", rate(node.per_s_in)], ["Writes", rate(node.per_s_out)], ["Unread", lag], ["Last batch took", node.latency_ms === null ? null : duration(node.latency_ms / 1000)], ["State", node.state_rows ? `${count(node.state_rows)} rows, ${bytes(node.state_bytes)}` : "none"], ["Late records", count(node.late)], ["Dead letters", count(node.dead)]],
    view: [["Applies", rate(node.per_s)], ["Unread", lag], ["Dead letters", count(node.dead)], ["Last proof", node.verified]],
  }[kind];
  const loss = node.time_to_loss_s !== null && node.time_to_loss_s !== undefined ? [["First loss in", duration(node.time_to_loss_s)]] : [];
  return [...(rows ?? []), ...loss].filter(([, value]) => value !== null && value !== undefined && value !== "");
}
