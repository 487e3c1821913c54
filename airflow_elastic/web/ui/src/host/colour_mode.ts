// Light or dark, kept where Airflow keeps it: a class of <html>, and "theme" in the browser's storage.

export type Mode = "light" | "dark" | "system";

const KEY = "theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function mode(): Mode {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "system";
}

export function choose(wanted: Mode): void {
  localStorage.setItem(KEY, wanted);
  showMode();
}

export function showMode(): void {
  const chosen = mode();
  const shown = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  const { classList, style } = document.documentElement;
  classList.remove("light", "dark");
  classList.add(shown);
  style.colorScheme = shown;
}

dark.addEventListener("change", showMode);
