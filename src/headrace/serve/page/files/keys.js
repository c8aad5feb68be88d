// The keyboard: "g" and a section's letter, "/" to find, "?" for help. Keys that are typed into a field are left alone.

const typing = (target) => target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

/** Returns what ends it. */
export function followKeys(sections, go, { help }) {
  let going = false;
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing(event.target) && !event.target.closest("dialog")) {
      event.target.blur();
      return;
    }
    if (typing(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "Shift") return;
    const where = going;
    going = !where && event.key === "g";
    if (where) {
      const section = sections.find((one) => one.key === event.key);
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
