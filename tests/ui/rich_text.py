"""An answer with everything in it that Markdown and mathematics have, as a model writes it."""

RICH = r"""Water is H<sub>2</sub>O, 2<sup>10</sup> is 1024; one line,<br>another. &copy; ~~gone~~ \*no emphasis\* [^1]

- [x] read the question
- [ ] answer it

| left | centre | right |
|:-----|:------:|------:|
| a | b | 1 234 567.89 |
| a \| b | c | 9 876 543 210.12 |

The root of $x^2 - p x + q$ lies at \(x_1\), prices are $5 and $10 still:

$$x_{1,2} = \frac{p}{2} \pm \sqrt{\frac{p^2}{4} - q}$$

\[
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} \cdot \vec{v} = \sum_{k=1}^{n} k^2
\]

Nothing comes of $\frac{1$ or of $\href{javascript:alert(1)}{a}$.

```python
def mean(numbers: list[float]) -> float:
    # an empty list has none
    return sum(numbers) / len(numbers) if numbers else float("nan")  # a long line that has to be wrapped or scrolled
```

![a maple leaf](https://example.org/leaf.png)

שלום, what is this?

[^1]: A note with **weight**.
"""
