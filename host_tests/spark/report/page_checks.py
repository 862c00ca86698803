"""Scripts that look over a page for what people could not read or use; for the tests of all pages."""

# Finds every text with less contrast to its background than WCAG AA requires.
FAINT_TEXT = """() => {
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    pixel.clearRect(0, 0, 1, 1); pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data];
  };
  const over = (front, back) => {
    const share = front[3] / 255;
    return [0, 1, 2].map((i) => front[i] * share + back[i] * (1 - share)).concat(255);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(parts(getComputedStyle(at).backgroundColor));
    return layers.reduce((back, front) => over(front, back), [255, 255, 255, 255]);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.getClientRects().length) continue;
    if (node.closest(".hidden, .skip, script, noscript")) continue;
    const style = getComputedStyle(node);
    const back = behind(node);
    const front = over(parts(node.closest("svg") ? style.fill : style.color), back);
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    if ((high + .05) / (low + .05) < 4.5) faint.push(`${text.data.trim()} (${node.className})`);
  }
  return faint;
}"""
# Finds every control that a screen reader could not name.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, a, [tabindex='0']")].filter((node) =>
  node.getClientRects().length && !(node.textContent.trim() && !node.matches("select, .scroll, .plot"))
  && !node.getAttribute("aria-label") && !node.labels?.length).map((node) => node.outerHTML.slice(0, 80))"""
