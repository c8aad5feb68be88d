// The page around its sections: where one is, what is wrong, and the ways to elsewhere.

import { html, render, useEffect, useErrorBoundary, useState } from "/page/vendor/ui.js";
import { address, go, parse } from "/page/address.js";
import { api, onTokenWanted } from "/page/api.js";
import { HealthLine } from "/page/health.js";
import { HelpDialog } from "/page/help.js";
import { Jump } from "/page/jump.js";
import { followKeys } from "/page/keys.js";
import { followNow } from "/page/now.js";
import { sections } from "/page/sections.js";
import { TokenDialog } from "/page/token_dialog.js";
import { Button, Empty, ProblemBox } from "/page/parts/box.js";

function useAddress() {
  const [place, setPlace] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setPlace(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return place;
}

function useNow() {
  const [now, setNow] = useState(null);
  const [link, setLink] = useState({ connected: false, problem: null });
  useEffect(() => {
    const heard = (state) => setLink((before) => (before.connected && state.connected ? before : state));
    return followNow(setNow, heard);
  }, []);
  return [now, link];
}

function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  useEffect(() => {
    const changed = () => setTheme(document.documentElement.dataset.theme);
    addEventListener("headrace-theme", changed);
    return () => removeEventListener("headrace-theme", changed);
  }, []);
  return [theme, () => dispatchEvent(new Event("headrace-theme-switch"))];
}

function badgeOf(section, now) {
  try {
    return (now && section.badge?.(now)) || "";
  } catch {
    return ""; // A badge must not take the page with it.
  }
}

const Nav = ({ current, now }) => html`
  <nav class="nav" aria-label="Sections">
    <ul>
      ${sections.map((one) => {
        const badge = badgeOf(one, now);
        // On a phone there is room for one word.
        const [first, ...rest] = one.title.split(" ");
        return html`<li key=${one.id}>
          <a href=${address(one.id)} class="nav-link" aria-current=${one.id === current ? "page" : undefined} data-test=${`nav-${one.id}`}
            title=${`${one.title} (g ${one.key})`}>
            <span class="nav-icon" aria-hidden="true">${one.icon}</span>
            <span class="nav-title">${first}${rest.length > 0 && html`<span class="wide-only"> ${rest.join(" ")}</span>`}</span>
            ${badge && html`<span class="badge" aria-label=${`${badge} need attention`}>${badge}</span>`}
          </a>
        </li>`;
      })}
    </ul>
  </nav>`;

const Lost = ({ link, known }) => {
  if (link.connected || !link.problem) return null;
  const { problem } = link;
  const silent = problem.status === 0;
  return html`<div class="lost" role="alert" data-test="lost">
    <strong>${silent ? "The connection to the server is lost." : "The server refuses the numbers of now."}</strong>
    <span>${silent ? (known ? "What is shown is how it was. " : "") + "The page keeps trying." : `${problem.detail}${problem.hint ? `; ${problem.hint}` : ""}`}</span>
  </div>`;
};

/** What goes wrong in a section stays in it: the ways to others remain. */
function Section({ section, ...given }) {
  const [error, again] = useErrorBoundary();
  if (error) {
    const problem = { title: "This section failed", detail: String(error.message ?? error), hint: "open it again, or load the page again", code: "" };
    return html`<${ProblemBox} problem=${problem} /><${Button} onClick=${again}>Open it again<//>`;
  }
  return html`<${section.View} ...${given} />`;
}

function Page() {
  const place = useAddress();
  const [now, link] = useNow();
  const [theme, switchTheme] = useTheme();
  const [app, setApp] = useState(null);
  const [help, setHelp] = useState(false);
  const [wanted, setWanted] = useState(null);
  useEffect(() => {
    onTokenWanted((refused) => new Promise((resolve) => setWanted({ refused, done: (given) => (setWanted(null), resolve(given)) })));
  }, []);
  useEffect(() => {
    if (link.connected) api.get("/v1/app").then(setApp, () => {});
  }, [link.connected]);
  useEffect(() => followKeys(sections, go, { help: () => setHelp((shown) => !shown) }), []);

  const current = place.section || sections[0]?.id;
  const section = sections.find((one) => one.id === current);
  useEffect(() => {
    document.title = `${[...place.path.slice(0, 2).reverse(), section?.title ?? "Not here", app?.app].filter(Boolean).join(" – ")} – Headrace`;
  }, [place, section, app]);

  return html`
    <a class="skip" href=${location.hash || "#/"} onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the section</a>
    <header class="top">
      <a class="brand" href="#/" aria-label="Headrace, to the start">
        <svg viewBox="0 0 32 32" width="20" height="20" aria-hidden="true"><path d="M3 11c5-5 8-5 13 0s8 5 13 0M3 21c5-5 8-5 13 0s8 5 13 0" fill="none" stroke="currentColor" stroke-width="3.4" stroke-linecap="round" /></svg>
        <span class="brand-name">Headrace</span>
      </a>
      ${app && html`<span class="app-name" title="The app" data-test="app-name">${app.app}</span>`}
      <${HealthLine} now=${now} connected=${link.connected} problem=${link.problem} />
      <${Jump} app=${app} sections=${sections} go=${go} />
      <button class="icon-button" type="button" onClick=${switchTheme} aria-label=${theme === "dark" ? "Light colours" : "Dark colours"} title=${theme === "dark" ? "Light colours" : "Dark colours"} data-test="theme">
        ${theme === "dark" ? sun : moon}
      </button>
      <button class="icon-button wide-only" type="button" onClick=${() => setHelp(true)} aria-label="Keys and help" title="Keys and help (?)" data-test="help">?</button>
    </header>
    <${Nav} current=${current} now=${now} />
    <main id="main" tabindex="-1" class=${`main section-${current}`} data-test=${`section-${current}`}>
      <${Lost} link=${link} known=${now !== null} />
      ${section
        ? html`<${Section} key=${section.id} section=${section} path=${place.path} query=${place.query} now=${now} go=${go} api=${api} />`
        : html`<${Empty} title="There is no such section" text=${`The address names "${current ?? ""}", which this page does not have.`} action=${html`<a class="button" href="#/">To the start</a>`} />`}
    </main>
    ${wanted && html`<${TokenDialog} ...${wanted} />`}
    ${help && html`<${HelpDialog} sections=${sections} onClose=${() => setHelp(false)} />`}`;
}

const moon = html`<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d="M13.5 9.7A6 6 0 0 1 6.3 2.5a6 6 0 1 0 7.2 7.2z" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" /></svg>`;
const sun = html`<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><circle cx="8" cy="8" r="3" fill="none" stroke="currentColor" stroke-width="1.4" /><path d="M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6L13 13M13 3l-1.4 1.4M4.4 11.6L3 13" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" /></svg>`;

render(html`<${Page} />`, document.getElementById("page"));
