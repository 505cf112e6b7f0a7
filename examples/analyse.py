"""A data analysis as a language model would write it: weather by month, as text and as a plot."""

import sys

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

source, target = sys.argv[1:]
weather = pd.read_csv(source, parse_dates=["date"])
months = weather.groupby(weather["date"].dt.month)[["precipitation", "temp_max", "temp_min"]].mean().round(1)
months.index.name = "month"
print(f"{len(weather)} days from {weather['date'].min():%Y-%m-%d} to {weather['date'].max():%Y-%m-%d}")
print(months.to_string())

figure, rain = plt.subplots(figsize=(8, 4))
rain.bar(months.index, months["precipitation"], color="steelblue", label="rain, mm a day")
warmth = rain.twinx()
warmth.plot(months.index, months["temp_max"], color="firebrick", label="warmest, °C")
warmth.plot(months.index, months["temp_min"], color="orange", label="coldest, °C")
rain.set_title("Seattle, month by month")
figure.legend(loc="lower center", ncols=3)
figure.subplots_adjust(bottom=0.18)
figure.savefig(target, dpi=100)
