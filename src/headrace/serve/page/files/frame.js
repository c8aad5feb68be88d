// The page around its sections: navigation, health line, search field, and dialogs.

import { html, render, useEffect, useErrorBoundary, useState } from "/page/vendor/ui.js";
import { address, go, parse } from "/page/address.js";
import { api, onTokenNeeded } from "/page/api.js";
import { HealthLine } from "/page/health.js";
import { HelpDialog } from "/page/help.js";
import { Jump } from "/page/jump.js";
import { followKeys } from "/page/keys.js";
import { followNow } from "/page/now.js";
import { sections } from "/page/sections.js";
import { TokenDialog } from "/page/token_dialog.js";
import { Button, Empty, ProblemBox } from "/page/parts/box.js";

function useAddress() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function useNow() {
  const [now, setNow] = useState(null);
  const [link, setLink] = useState({ connected: false, problem: null });
  useEffect(() => {
    const update = (state) => setLink((before) => (before.connected && state.connected ? before : state));
    return followNow(setNow, update);
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
    return ""; // A failing badge must not break the page.
  }
}

const Nav = ({ current, now }) => html`
  <nav class="nav" aria-label="Sections">
    <ul>
      ${sections.map((section) => {
        const badge = badgeOf(section, now);
        // A narrow screen has space for only one word.
        const [first, ...rest] = section.title.split(" ");
        return html`<li key=${section.id}>
          <a href=${address(section.id)} class="nav-link" aria-current=${section.id === current ? "page" : undefined} data-test=${`nav-${section.id}`}
            title=${`${section.title} (g ${section.key})`}>
            <span class="nav-icon" aria-hidden="true">${section.icon}</span>
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
  const isUnreachable = problem.status === 0;
  return html`<div class="lost" role="alert" data-test="lost">
    <strong>${isUnreachable ? "The connection to the server is lost." : "The server refuses live numbers."}</strong>
    <span>${isUnreachable ? (known ? "The page shows the last known state. " : "") + "Reconnecting…" : `${problem.detail}${problem.hint ? `; ${problem.hint}` : ""}`}</span>
  </div>`;
};

/** An error in a section leaves the rest of the page usable. */
function Section({ section, ...sectionProps }) {
  const [error, reset] = useErrorBoundary();
  if (error) {
    const problem = { title: "This section failed", detail: String(error.message ?? error), hint: "open the section again, or reload the page", code: "" };
    return html`<${ProblemBox} problem=${problem} /><${Button} onClick=${reset}>Open again<//>`;
  }
  return html`<${section.View} ...${sectionProps} />`;
}

function Page() {
  const route = useAddress();
  const [now, link] = useNow();
  const [theme, switchTheme] = useTheme();
  const [app, setApp] = useState(null);
  const [help, setHelp] = useState(false);
  const [tokenPrompt, setTokenPrompt] = useState(null);
  useEffect(() => {
    onTokenNeeded((refused) => new Promise((resolve) => setTokenPrompt({ refused, done: (isEntered) => (setTokenPrompt(null), resolve(isEntered)) })));
  }, []);
  useEffect(() => {
    if (link.connected) api.get("/v1/app").then(setApp, () => {});
  }, [link.connected]);
  useEffect(() => followKeys(sections, go, { help: () => setHelp((shown) => !shown) }), []);

  const current = route.section || sections[0]?.id;
  const section = sections.find((section) => section.id === current);
  useEffect(() => {
    document.title = `${[...route.path.slice(0, 2).reverse(), section?.title ?? "Unknown section", app?.app].filter(Boolean).join(" – ")} – Headrace`;
  }, [route, section, app]);

  return html`
    <a class="skip" href=${location.hash || "#/"} onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the section</a>
    <header class="top">
      <a class="brand" href="#/" aria-label="Headrace: start page">
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
        ? html`<${Section} key=${section.id} section=${section} path=${route.path} query=${route.query} now=${now} go=${go} api=${api} />`
        : html`<${Empty} title="No such section" text=${`The page has no section "${current ?? ""}".`} action=${html`<a class="button" href="#/">Go to the start page</a>`} />`}
    </main>
    ${tokenPrompt && html`<${TokenDialog} ...${tokenPrompt} />`}
    ${help && html`<${HelpDialog} sections=${sections} onClose=${() => setHelp(false)} />`}`;
}

const moon = html`<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d="M13.5 9.7A6 6 0 0 1 6.3 2.5a6 6 0 1 0 7.2 7.2z" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" /></svg>`;
const sun = html`<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><circle cx="8" cy="8" r="3" fill="none" stroke="currentColor" stroke-width="1.4" /><path d="M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6L13 13M13 3l-1.4 1.4M4.4 11.6L3 13" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" /></svg>`;

// Preact keeps the children that the root already has, so remove the text that says that the page is loading.
const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
