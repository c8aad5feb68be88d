// The sections of the page, in the order of its navigation. A new section needs an import and an entry in the list.

import graph from "/page/sections/graph.js";
import flows from "/page/sections/flows.js";
import topics from "/page/sections/topics.js";
import groups from "/page/sections/groups.js";
import dead from "/page/sections/dead.js";
import views from "/page/sections/views.js";
import sql from "/page/sections/sql.js";
import alerts from "/page/sections/alerts.js";

export const sections = [
  graph,
  flows,
  topics,
  groups,
  dead,
  views,
  sql,
  alerts,
];
