#!/usr/bin/env bash
# Opens study reports in headless Chromium, in light and dark mode, at desktop width and as narrow as a phone. Fails if a page
# runs a script, requests anything external, is wider than its window, hides a figure, or stays empty. With --shots DIR,
# saves screenshots there.
#
#   scripts/check-report.sh [--shots DIR] [REPORT.html ...]
#
# Without arguments, checks the reports that `cargo test --release -p ropewalk-study` leaves under target/tmp.
# Needs chromium and python3.
set -euo pipefail
cd "$(dirname "$0")/.."

shots=
if [ "${1:-}" = --shots ]; then
  shots=$2
  mkdir -p "$shots"
  shift 2
fi
target=${CARGO_TARGET_DIR:-target}
[ $# -gt 0 ] || set -- "$target/tmp/study-report/whole.html" "$target/tmp/study-report/hostile.html"

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
  echo "check-report: expected chromium, found none; try: apt-get install chromium" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Containers have no user namespaces for Chromium's sandbox.
browse() {
  timeout 120 "$chromium" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
    --user-data-dir="$work/profile" --host-resolver-rules='MAP * ~NOTFOUND' --allow-file-access-from-files \
    --force-color-profile=srgb "$@" 2>"$work/log" || { cat "$work/log" >&2; return 1; }
}

# Loads the page in a frame as wide as a phone, a tablet, and a desktop. The findings go into the title of the surrounding
# page, where --dump-dom shows them.
frame() {
  cat <<HTML
<!DOCTYPE html><meta charset="utf-8"><title>waiting</title>
<iframe src="page.html" style="width:$1px;height:900px;border:0"></iframe>
<script>
const frame = document.querySelector('iframe');
frame.addEventListener('load', () => {
  const page = frame.contentDocument, root = page.documentElement, faults = [];
  if (root.scrollWidth > root.clientWidth) faults.push('wider than its window: ' + root.scrollWidth);
  if (page.querySelectorAll('script, img, link, iframe, object, embed').length) faults.push('foreign elements');
  if (page.title !== page.querySelector('h1').textContent.trim()) faults.push('another title: ' + page.title);
  if (frame.contentWindow.performance.getEntriesByType('resource').length) faults.push('asks for more');
  page.querySelectorAll('details').forEach(d => d.open = true);
  if (root.scrollWidth > root.clientWidth) faults.push('wider than its window when opened: ' + root.scrollWidth);
  page.querySelectorAll('td').forEach(td => { if (!td.textContent.trim() && !td.closest('details')) faults.push('an empty cell'); });
  page.querySelectorAll('svg').forEach(svg => {
    const box = svg.getBoundingClientRect(), title = svg.getAttribute('aria-label');
    if (!title || box.width < 60 || box.height < 40) faults.push('a chart without a title or a size: ' + title);
    svg.querySelectorAll('text').forEach(t => {
      const b = t.getBoundingClientRect();
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
        faults.push('text outside of a chart: ' + t.textContent);
    });
  });
  page.querySelectorAll('svg').forEach(svg => {
    const boxes = [];
    svg.querySelectorAll('text').forEach(t => {
      const b = t.getBoundingClientRect(), on = o => b.top < o.bottom - 3 && o.top < b.bottom - 3 && b.left < o.right && o.left < b.right;
      if (boxes.some(on)) faults.push('texts on each other: ' + t.textContent);
      boxes.push(b);
    });
  });
  const shade = getComputedStyle(page.body).backgroundColor;
  const counts = page.querySelectorAll('table').length + ' tables, ' + page.querySelectorAll('svg').length + ' charts';
  document.title = 'checked|' + (faults.join('; ') || 'good') + '|' + counts + ', page ' + shade;
});
</script>
HTML
}

failed=0
for report in "$@"; do
  cp -- "$report" "$work/page.html"
  for width in 390 820 1280; do
    for scheme in light dark; do
      frame "$width" >"$work/frame.html"
      # System color scheme: 0 is dark, 1 is light.
      dark=(); [ "$scheme" = light ] || dark=(--blink-settings=preferredColorScheme=0)
      said=$(browse "${dark[@]}" --virtual-time-budget=5000 --dump-dom "file://$work/frame.html" |
        python3 -c 'import html, re, sys; print(html.unescape(re.search("<title>(.*?)</title>", sys.stdin.read(), re.S)[1]))')
      echo "$report, $width px, $scheme: ${said#checked|}"
      case $said in
        "checked|good|"*) ;;
        *) failed=1 ;;
      esac
      if [ -n "$shots" ]; then
        browse "${dark[@]}" --window-size="$width,3000" --screenshot="$work/shot.png" "file://$work/page.html" >/dev/null
        mv "$work/shot.png" "$shots/$(basename "$report" .html)-$width-$scheme.png"
      fi
    done
  done
done
exit $failed
