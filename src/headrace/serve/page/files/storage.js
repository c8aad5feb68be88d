// Browser storage for the page. If storage is forbidden or full, values are kept in memory until the page is closed.

/** `open` returns localStorage or sessionStorage, or throws. Setting null removes the entry. */
export function safeStorage(open) {
  const memory = new Map();
  return {
    get(name) {
      if (memory.has(name)) return memory.get(name);
      try {
        return open().getItem(name);
      } catch {
        return null;
      }
    },
    set(name, text) {
      try {
        if (text === null) open().removeItem(name);
        else open().setItem(name, text);
        memory.delete(name);
      } catch {
        memory.set(name, text);
      }
    },
  };
}

export const localStore = safeStorage(() => localStorage);
