// Runs before the first paint, so that the page never flashes in the wrong theme.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("ringrift-theme"); } catch { /* storage is switched off: follow the system */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
