// Before the first paint: light or dark, as chosen here earlier, or else as the system has it.
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem('evenstep-theme');
  } catch {
    // A browser that keeps nothing: the system's choice holds.
  }
  const dark = kept ? kept === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
})();
