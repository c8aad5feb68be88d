// Keyboard shortcuts: "g" and a section's letter, "/" to search, "?" for help. Keys typed into a field are ignored.

const isField = (target) => target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

/** Listen to the keyboard. Return a function that stops listening. */
export function followKeys(sections, go, { help }) {
  let awaitsSection = false;
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && isField(event.target) && !event.target.closest("dialog")) {
      event.target.blur();
      return;
    }
    if (isField(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "Shift") return;
    const expectedSection = awaitsSection;
    awaitsSection = !expectedSection && event.key === "g";
    if (expectedSection) {
      const section = sections.find((section) => section.key === event.key);
      if (section) {
        event.preventDefault();
        go(section.id);
      }
    } else if (event.key === "?") help();
    else if (event.key === "/") {
      event.preventDefault();
      const field = document.querySelector("main [data-find]") ?? document.querySelector("[data-jump]");
      field?.focus();
      field?.select();
    }
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}
