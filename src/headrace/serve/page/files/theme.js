// Sets data-theme on the root element before the first paint: the theme that the user chose, or that of the system.

(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("headrace.theme");
    } catch {
      return null; // Storage can be forbidden.
    }
  };
  const apply = () => {
    root.dataset.theme = chosen() ?? (system.matches ? "dark" : "light");
    dispatchEvent(new Event("headrace-theme"));
  };
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("headrace-theme-switch", () => {
    try {
      localStorage.setItem("headrace.theme", root.dataset.theme === "dark" ? "light" : "dark");
    } catch {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      dispatchEvent(new Event("headrace-theme"));
      return;
    }
    apply();
  });
  apply();
})();
