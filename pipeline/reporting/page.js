"use strict";
(() => {
  const names = ["system", "light", "dark"], root = document.documentElement;
  const button = document.getElementById("theme"), label = document.getElementById("theme-name");
  const stored = () => { try { return localStorage.getItem("report-theme"); } catch { return null; } };
  let chosen = Math.max(0, names.indexOf(stored()));
  const show = () => {
    if (chosen) root.dataset.theme = names[chosen]; else delete root.dataset.theme;
    label.textContent = names[chosen];
  };
  button.addEventListener("click", () => {
    chosen = (chosen + 1) % names.length;
    try { localStorage.setItem("report-theme", names[chosen]); } catch { /* a page from disk may have no storage */ }
    show();
  });
  button.hidden = false;
  show();
})();
