// Runs before the first paint: sets light or dark colours as chosen earlier, else as the system prefers.
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem('evenstep-theme');
  } catch {
    // The browser stores nothing: use the system's preference.
  }
  const dark = kept ? kept === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
})();
